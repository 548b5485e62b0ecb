"""Sparse dictionaries: values as sums of few features.

    features = activation(x @ encoder + encoder_bias)        for an autoencoder, x minus the decoder's bias
    output   = features @ decoder + decoder_bias             for a skip transcoder, plus x @ skip

What a dictionary reads and writes is its kind: an autoencoder writes what it reads, a transcoder predicts another
value, even if both are equally wide. The features are a site, `features`: where a dictionary is spliced into a program,
they can be captured, ablated and attributed like any other value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp

from sonde import nnx
from sonde.core import sow

Activation = Literal["relu", "topk", "batchtopk", "jumprelu", "gated"]
Kind = Literal["autoencoder", "transcoder", "skip_transcoder"]
ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)
KINDS: tuple[Kind, ...] = get_args(Kind)
_START = 0.1  # the initial length of decoder rows: features start small and grow into what they reconstruct


class Dictionary(nnx.Module):
    """A sparse autoencoder or transcoder.

    Args:
        d_in: The width of the input.
        n_features: How many features there are.
        activation: Which features are active. `"relu"`: those above zero. `"topk"`: the `k` largest of these.
            `"batchtopk"`: while training, the `k` largest per input of a whole batch; afterwards, those above a
            threshold that training finds. `"jumprelu"`: those above a threshold that each feature learns. `"gated"`:
            those that a second bias chooses.
        k: How many features are active, for `"topk"` and `"batchtopk"`.
        kind: `"autoencoder"`; `"transcoder"`, which predicts a value other than its input; or `"skip_transcoder"`, with
            a linear map from input to output beside the features. By default a transcoder if `d_out` is given.
        d_out: The width of the output of a transcoder; by default that of the input.
        threshold: The initial threshold of each feature, for `"jumprelu"`.
        centered: Whether the decoder's bias is subtracted from the input; by default for autoencoders, and only there.
        nested: For a Matryoshka dictionary: numbers of features, growing, such that the first so many features alone
            are trained to reconstruct the value, too.
        rngs: Random streams; `params` is used.

    Example:
        >>> import jax.numpy as jnp
        >>> from sonde import nnx
        >>> from sonde.dictionaries import Dictionary
        >>> autoencoder = Dictionary(8, 32, activation="topk", k=4, rngs=nnx.Rngs(0))
        >>> features = autoencoder.encode(jnp.ones((2, 8)))
        >>> features.shape, bool(((features > 0).sum(-1) <= 4).all())
        ((2, 32), True)
    """

    def __init__(
        self,
        d_in: int,
        n_features: int,
        *,
        activation: Activation = "relu",
        k: int | None = None,
        kind: Kind | None = None,
        d_out: int | None = None,
        threshold: float = 0.01,
        centered: bool | None = None,
        nested: Sequence[int] = (),
        rngs: nnx.Rngs,
    ) -> None:
        self.kind: Kind = kind or ("autoencoder" if d_out is None else "transcoder")
        self.d_in, self.d_out, self.n_features = d_in, d_in if d_out is None else d_out, n_features
        self.activation: Activation = activation
        self.k, self.nested = k, tuple(nested)
        self._check()
        self.centered = self.kind == "autoencoder" if centered is None else centered
        if self.centered and self.kind != "autoencoder":
            raise ValueError(f"centered= is for autoencoders, this is a {self.kind}")
        decoder = jax.random.normal(rngs.params(), (n_features, self.d_out))
        decoder = decoder / jnp.linalg.norm(decoder, axis=1, keepdims=True)
        if self.kind == "autoencoder":
            encoder = decoder.T  # each feature first reads what it writes
        else:
            encoder = jax.random.normal(rngs.params(), (d_in, n_features))
            encoder = encoder / jnp.linalg.norm(encoder, axis=0, keepdims=True)
        start = 1.0 if self.has_unit_rows else _START
        # Among the largest features of a whole batch, long ones of a few inputs would leave nothing for the others.
        reading = _START if activation == "batchtopk" else start
        self.encoder, self.decoder = nnx.Param(encoder * reading), nnx.Param(decoder * start)
        self.encoder_bias, self.decoder_bias = nnx.Param(jnp.zeros(n_features)), nnx.Param(jnp.zeros(self.d_out))
        if activation == "jumprelu":
            self.threshold = nnx.Param(jnp.full(n_features, threshold))
        elif activation == "batchtopk":
            self.threshold = nnx.Variable(jnp.zeros(()))  # found by training, not by gradients
        elif activation == "gated":
            self.gate_bias, self.log_gain = nnx.Param(jnp.zeros(n_features)), nnx.Param(jnp.zeros(n_features))
        if self.kind == "skip_transcoder":
            self.skip = nnx.Param(jnp.zeros((d_in, self.d_out)))

    def _check(self) -> None:
        for name, value, known in (("activation", self.activation, ACTIVATIONS), ("kind", self.kind, KINDS)):
            if value not in known:
                raise ValueError(f"a dictionary's {name} must be one of {', '.join(known)}, got {value!r}")
        if (self.activation in ("topk", "batchtopk")) != (self.k is not None):
            raise ValueError(
                "k= goes with activation='topk' and activation='batchtopk', got "
                f"activation={self.activation!r} and k={self.k}"
            )
        if self.k is not None and not 1 <= self.k <= self.n_features:
            raise ValueError(f"k must be between 1 and the number of features, {self.n_features}, got {self.k}")
        if self.kind == "autoencoder" and self.d_out != self.d_in:
            raise ValueError(f"an autoencoder writes what it reads, but d_in is {self.d_in} and d_out is {self.d_out}")
        if list(self.nested) != sorted({*self.nested}) or any(not 0 < n < self.n_features for n in self.nested):
            raise ValueError(
                f"nested= must be growing numbers between 0 and the number of features, {self.n_features}, got "
                f"{self.nested}"
            )

    @property
    def has_unit_rows(self) -> bool:
        """Whether decoder rows have length one while training. If not, the loss makes up for their lengths."""
        return self.activation in ("topk", "batchtopk", "jumprelu")

    def row_lengths(self) -> jax.Array:
        """How much each feature writes: the lengths of the decoder's rows, by which sparsity counts features."""
        return jnp.linalg.norm(self.decoder[...], axis=1)

    def pre_activations(self, x: jax.Array) -> jax.Array:
        """The inputs of the activation."""
        x = jnp.asarray(x)
        if x.shape[-1:] != (self.d_in,):
            raise ValueError(f"the dictionary takes values of width {self.d_in}, got shape {x.shape}")
        if self.centered:
            x = x - self.decoder_bias[...].astype(x.dtype)
        projected = x @ self.encoder[...].astype(x.dtype)
        # The gate reads the same directions as the size of a feature, with its own bias.
        return projected if self.activation == "gated" else projected + self.encoder_bias[...].astype(x.dtype)

    def activate(self, before: jax.Array) -> jax.Array:
        """The features, from what `pre_activations` returned."""
        dtype = before.dtype
        if self.activation == "jumprelu":
            return jumprelu(before, self.threshold[...].astype(dtype))
        if self.activation == "gated":
            size = before * jnp.exp(self.log_gain[...]).astype(dtype) + self.encoder_bias[...].astype(dtype)
            return jnp.where(self.gates(before) > 0, jax.nn.relu(size), 0)
        positive = jax.nn.relu(before)
        if self.activation == "batchtopk":
            return jnp.where(positive > self.threshold[...].astype(dtype), positive, 0)
        if self.k is None:
            return positive
        values, indices = jax.lax.top_k(positive, self.k)
        return jnp.put_along_axis(jnp.zeros_like(positive), indices, values, axis=-1, inplace=False)

    def gates(self, before: jax.Array) -> jax.Array:
        """For `"gated"`: what decides whether a feature is active, by being above zero."""
        return before + self.gate_bias[...].astype(before.dtype)

    def encode(self, x: jax.Array) -> jax.Array:
        """The features of a value."""
        return sow(self.activate(self.pre_activations(x)), "features")

    def decode(self, features: jax.Array) -> jax.Array:
        """The value that features represent; for a skip transcoder, without what skips them."""
        dtype = jnp.asarray(features).dtype
        return features @ self.decoder[...].astype(dtype) + self.decoder_bias[...].astype(dtype)

    def skipped(self, x: jax.Array) -> Any:
        """What a skip transcoder adds to the output beside the features; 0 for all others."""
        return x @ self.skip[...].astype(x.dtype) if self.kind == "skip_transcoder" else 0

    def __call__(self, x: jax.Array) -> jax.Array:
        """The reconstruction of a value; for a transcoder, its prediction."""
        return self.decode(self.encode(x)) + self.skipped(jnp.asarray(x))

    def rescale(self) -> None:
        """Makes all decoder rows one long, and features longer instead: the output stays the same."""
        lengths = jnp.maximum(jnp.linalg.norm(self.decoder[...], axis=1), 1e-8)
        self.decoder[...] = self.decoder[...] / lengths[:, None]
        self.encoder[...] = self.encoder[...] * lengths
        self.encoder_bias[...] = self.encoder_bias[...] * lengths
        if self.activation == "jumprelu":
            self.threshold[...] = self.threshold[...] * lengths
        elif self.activation == "gated":
            self.gate_bias[...] = self.gate_bias[...] * lengths


BANDWIDTH = 0.05  # the range around a threshold that contributes to its gradient


@jax.custom_jvp
def jumprelu(x: jax.Array, threshold: jax.Array) -> jax.Array:
    """Positive numbers above a threshold, and zero elsewhere. Numbers near it give the threshold a gradient.

    They get the opposite one: if only the threshold moved, a larger weight on sparsity would soon change nothing more.
    """
    return jnp.where(x > threshold, jax.nn.relu(x), 0)


@jumprelu.defjvp
def _jumprelu_jvp(primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]) -> tuple[Any, Any]:
    x, threshold = primals
    near = jnp.abs(x - threshold) < BANDWIDTH / 2
    slope = jnp.where(near, -threshold / BANDWIDTH, 0).astype(x.dtype)
    passed = (x > threshold) & (x > 0)
    return jumprelu(x, threshold), jnp.where(passed, tangents[0], 0) + slope * (tangents[1] - tangents[0])


@jax.custom_jvp
def step(x: jax.Array, threshold: jax.Array) -> jax.Array:
    """One above a threshold and zero elsewhere, to count active features; the threshold has a gradient."""
    return jnp.where(x > threshold, 1.0, 0.0).astype(x.dtype)


@step.defjvp
def _step_jvp(primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]) -> tuple[Any, Any]:
    x, threshold = primals
    near = jnp.abs(x - threshold) < BANDWIDTH / 2
    return step(x, threshold), jnp.where(near, -1 / BANDWIDTH, 0).astype(x.dtype) * (tangents[1] - tangents[0])
