"""One block: attention and an MLP around the residual stream, with norms where the architecture has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from sonde import nnx
from sonde.core import sow
from sonde.models.config import Config, activation


class Block(nnx.Module):
    """Attention and an MLP, each added to the residual stream.

    Sites: `in`, `attn_in`, `norm1`, `attn/...`, `mid`, `mlp_in`, `norm2`, `mlp/...`, `out`; and `attn_norm`, `mlp_norm`
    where there are norms after attention and MLP. `in`, `mid` and `out` are the stream; `attn_in` and `mlp_in` are the
    stream as attention and the MLP read it, so that a change there reaches nothing else. Where both read one norm,
    `attn_in` is what both read. With `split_inputs` there are `q_in`, `k_in` and `v_in` in place of `attn_in`: what
    each head reads, with an axis for heads; norms and projections are then computed for every head.

    Args:
        config: The description of the model.
        rngs: Random streams for the initial parameters.
        dtype: The dtype of the parameters.
    """

    def __init__(self, config: Config, *, rngs: nnx.Rngs, dtype: DTypeLike):
        self.style = config.style
        self.split_inputs = False

        def norm(features: int = config.width, rngs: nnx.Rngs = rngs, kind: Any = None) -> nnx.Module:
            return config.new_norm(features, rngs=rngs, kind=kind, param_dtype=dtype)

        self.norm1: Any = norm()
        self.attn = nnx.GroupedAttention(
            config.width,
            heads=config.heads,
            key_heads=config.key_heads,
            depth=config.depth,
            use_bias=config.qkv_bias,
            use_out_bias=config.out_bias,
            norm=(lambda depth, rngs: norm(depth, rngs, config.qk_norm)) if config.qk_norm else None,
            scale=config.scale,
            cap=config.score_cap,
            param_dtype=dtype,
            rngs=rngs,
        )
        self.attn_norm: Any = nnx.data(norm() if config.style == "sandwich" else None)
        self.norm2: Any = nnx.data(None if config.shares_norm else norm())
        self.mlp = nnx.MLP(
            config.width,
            config.hidden,
            activation=activation(config.activation),
            gated=config.gated,
            use_bias=config.mlp_bias,
            param_dtype=dtype,
            rngs=rngs,
        )
        self.mlp_norm: Any = nnx.data(norm() if config.style == "sandwich" else None)

    def __call__(
        self,
        x: jax.Array,
        *,
        mask: jax.Array | None = None,
        rotation: tuple[jax.Array, jax.Array] | None = None,
        cache: Callable[[nnx.KeyValues], nnx.KeyValues] | None = None,
    ) -> jax.Array:
        """Applies the block.

        Args:
            x: `(batch, length, width)`.
            mask: Which keys each query may attend to.
            rotation: Cosines and sines for the positions.
            cache: A function that takes new keys and values and returns those of all positions so far.

        Returns:
            `(batch, length, width)`.
        """
        x = sow(x, "in")
        attend = {"mask": mask, "rotation": rotation, "cache": cache}
        if self.style == "post":
            x = sow(sow(self.norm1(x + self.attn(sow(x, "attn_in"), **attend)), "norm1"), "mid")
            return sow(sow(self.norm2(x + self.mlp(sow(x, "mlp_in"))), "norm2"), "out")
        normed: Any = self._inputs_of_heads(x) if self.split_inputs else sow(self.norm1(sow(x, "attn_in")), "norm1")
        attended = self.attn(normed, **attend)
        if self.attn_norm is not None:
            attended = sow(self.attn_norm(attended), "attn_norm")
        mid = sow(x + attended, "mid")
        if self.norm2 is not None:
            normed = sow(self.norm2(sow(x if self.style == "parallel" else mid, "mlp_in")), "norm2")
        elif self.split_inputs:
            normed = sow(self.norm1(sow(x, "mlp_in")), "norm1")
        added = self.mlp(normed)
        if self.mlp_norm is not None:
            added = sow(self.mlp_norm(added), "mlp_norm")
        return sow(mid + added, "out")

    def _inputs_of_heads(self, x: jax.Array) -> tuple[jax.Array, ...]:
        """What queries, keys and values of each head are computed from, `(batch, length, heads, width)` each."""
        heads = {"q_in": self.attn.heads, "k_in": self.attn.key_heads, "v_in": self.attn.key_heads}
        apart = {name: jnp.broadcast_to(x[..., None, :], (*x.shape[:-1], n, x.shape[-1])) for name, n in heads.items()}
        return tuple(self.norm1(sow(part, name)) for name, part in apart.items())
