"""Mistakes of people who port models, planted in models of `sonde.models`.

Each changes a model that was loaded right. `sites` says where the wrong operation is: the first site after it. Where
the port lacks an operation, `original` says which one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from sonde import nnx


@dataclasses.dataclass(frozen=True)
class Mistake:
    """A mistake.

    Attributes:
        name: What it is called.
        plant: Changes a model.
        sites: A regular expression for the sites right after the wrong operation.
        models: In which models it is planted, by their names in `tests.models.cases`.
        original: A regular expression for the operation of the original that the port lacks, with its module.
    """

    name: str
    plant: Callable[[Any], None]
    sites: str
    models: Sequence[str]
    original: str = "nothing"


def changed(parameter: Any, change: Callable[[jax.Array], jax.Array]) -> None:
    """Changes a parameter."""
    parameter[...] = change(parameter[...])


def configured(model: Any, **options: Any) -> None:
    """Changes the description of a model."""
    model.config = dataclasses.replace(model.config, **options)


def rotary(model: Any, **options: Any) -> None:
    """Changes the rotary embedding of all layers."""
    kinds = [dataclasses.replace(k, rotary=dataclasses.replace(k.rotary, **options)) for k in model.config.kinds]
    configured(model, kinds=tuple(kinds))


def windowed(model: Any, by: int) -> None:
    """Changes how far back layers see."""
    kinds = [dataclasses.replace(k, window=k.window and k.window + by) for k in model.config.kinds]
    configured(model, kinds=tuple(kinds))


def swap(one: Any, other: Any) -> None:
    """Swaps two parameters."""
    first = jnp.array(one[...])
    one[...] = other[...]
    other[...] = first


def by_heads(kernel: jax.Array, heads: int) -> jax.Array:
    """The columns of a projection in the order (depth, heads), as if they were stored so."""
    return kernel.reshape(len(kernel), heads, -1).swapaxes(1, 2).reshape(kernel.shape)


def interleaved(kernel: jax.Array, heads: int) -> jax.Array:
    """The columns of a projection as interleaved rotary embeddings want them."""
    split = kernel.reshape(len(kernel), heads, 2, -1)
    return split.swapaxes(2, 3).reshape(kernel.shape)


def last(model: Any) -> Any:
    """The second block."""
    return model.blocks[1]


def without(parameter: Any) -> None:
    """Sets a parameter to zero, as if it were forgotten."""
    changed(parameter, jnp.zeros_like)


def layer_norm(model: Any) -> None:
    """Takes the mean away where only the root mean square is taken."""
    old = last(model).norm1
    new = nnx.LayerNorm(old.num_features, use_bias=False, epsilon=old.epsilon, rngs=nnx.Rngs(0))
    new.scale[...] = old.scale[...]
    last(model).norm1 = new


LLAMAS = ("llama", "qwen2")
ROTARY = ("llama", "qwen2", "gemma")
LAYER_NORMS = ("gpt2", "gpt_neox", "bert", "vit")
IN_ATTENTION = "(scores|weights|heads)"

MISTAKES = [
    Mistake("eps", lambda m: setattr(last(m).norm1, "epsilon", 1e-3), "blocks/1/norm1.*", (*LLAMAS, *LAYER_NORMS)),
    Mistake("eps of the last norm", lambda m: setattr(m.norm, "epsilon", 1e-3), "norm.*", ("gpt2", "llama")),
    Mistake(
        "scale",
        lambda m: setattr(last(m).attn, "scale", 1.0),
        "blocks/1/attn/scores",
        original=r"(mul|div|scaled_dot\w*)\(.*1/(self_attn|attn|attention)\b.*",
        models=("llama", "bert", "vit"),
    ),
    Mistake(
        "scale of the width",
        lambda m: setattr(last(m).attn, "scale", 0.25),
        "blocks/1/attn/scores",
        original=r"(mul|div|scaled_dot\w*)\(.*1/(self_attn|attn|attention)\b.*",
        models=("gpt2", "qwen2"),
    ),
    Mistake(
        "gelu",
        lambda m: setattr(last(m).mlp, "activation", jax.nn.gelu),
        "blocks/1/mlp/(up|hidden)",
        ("bert", "vit", "gpt_neox"),
    ),
    Mistake(
        "silu", lambda m: setattr(last(m).mlp, "activation", jax.nn.silu), "blocks/1/mlp/(up|hidden)", ("gpt2", "gemma")
    ),
    Mistake(
        "relu", lambda m: setattr(last(m).mlp, "activation", jax.nn.relu), "blocks/1/mlp/(up|hidden)", ("llama", "phi2")
    ),
    Mistake("no bias of queries", lambda m: without(last(m).attn.q.bias), "blocks/1/attn/q", ("qwen2", "gpt2", "bert")),
    Mistake("no bias of values", lambda m: without(last(m).attn.v.bias), "blocks/1/attn/v", ("qwen2", "vit")),
    Mistake("no bias of the MLP", lambda m: without(last(m).mlp.down.bias), "blocks/1/mlp/out", ("gpt_neox", "phi2")),
    Mistake("no bias of the norm", lambda m: without(last(m).norm2.bias), "blocks/1/norm2.*", ("bert", "gpt2")),
    Mistake(
        "no weight of the norm",
        lambda m: changed(m.norm.scale, jnp.ones_like),
        "norm",
        original=r"(mul|native_layer_norm)\(.*(norm|ln_f), .*",
        models=("llama", "gpt2"),
    ),
    Mistake(
        "transposed", lambda m: changed(last(m).attn.o.kernel, jnp.transpose), "blocks/1/attn/out", (*LLAMAS, "vit")
    ),
    Mistake(
        "gate and up", lambda m: swap(last(m).mlp.gate.kernel, last(m).mlp.up.kernel), "blocks/1/mlp/(pre|up)", LLAMAS
    ),
    Mistake(
        "queries and keys",
        lambda m: swap(last(m).attn.q.kernel, last(m).attn.k.kernel),
        "blocks/1/attn/([qk]|[qk]_rotated|scores)",
        ("gpt2", "bert"),
    ),
    Mistake(
        "keys and values",
        lambda m: swap(last(m).attn.k.kernel, last(m).attn.v.kernel),
        "blocks/1/attn/([kv]|k_rotated|scores)",
        ("llama", "vit"),
    ),
    Mistake(
        "norms", lambda m: swap(last(m).norm1.scale, last(m).norm2.scale), "blocks/1/norm1.*", ("llama", "gpt_neox")
    ),
    Mistake("theta", lambda m: rotary(m, theta=500.0), "blocks/0/(in|attn_in|attn/[qk]_rotated)", ROTARY),
    Mistake(
        "rotated features",
        lambda m: rotary(m, width=4),
        "blocks/0/(in|attn_in|attn/[qk]_rotated)",
        ("gpt_neox",),
    ),
    Mistake(
        "rotary scaling",
        lambda m: rotary(m, kind="default"),
        "blocks/0/(in|attn_in|attn/[qk]_rotated)",
        ("llama_3", "llama_linear"),
    ),
    Mistake(
        "interleaved",
        lambda m: changed(last(m).attn.q.kernel, lambda k: interleaved(k, m.config.heads)),
        "blocks/1/attn/q",
        ("llama",),
    ),
    Mistake(
        "heads",
        lambda m: changed(last(m).attn.q.kernel, lambda k: by_heads(k, m.config.heads)),
        "blocks/1/attn/q",
        ("gpt2", "vit"),
    ),
    Mistake(
        "order of key heads",
        lambda m: changed(last(m).attn.k.kernel, lambda k: jnp.roll(k, k.shape[1] // 2, 1)),
        "blocks/1/attn/k",
        ("llama", "gemma"),
    ),
    Mistake("not causal", lambda m: configured(m, causal=False), f"blocks/0/attn/{IN_ATTENTION}", ("llama", "gpt2")),
    Mistake("causal", lambda m: configured(m, causal=True), f"blocks/0/attn/{IN_ATTENTION}", ("bert", "vit")),
    Mistake("window", lambda m: windowed(m, 1), f"blocks/0/attn/{IN_ATTENTION}", ("mistral",)),
    Mistake(
        "window of some layers",
        lambda m: windowed(m, -1),
        f"blocks/[01]/attn/{IN_ATTENTION}",
        ("gemma2", "qwen2_windows"),
    ),
    Mistake(
        "positions",
        lambda m: configured(m, position_offset=m.config.position_offset + 1),
        "(embedded|embed_norm.*)",
        ("gpt2", "bert", "roberta"),
    ),
    Mistake(
        "parallel",
        lambda m: setattr(last(m), "style", "parallel"),
        "blocks/1/(mlp_in|norm2.*)",
        ("llama", "gpt_neox_in_turn"),
    ),
    Mistake(
        "in turn",
        lambda m: setattr(last(m), "style", "pre"),
        "blocks/1/(mlp_in|norm2.*)",
        ("gpt_neox",),
        r"native_layer_norm.*1/post_attention.*",
    ),
    Mistake("norm first", lambda m: setattr(last(m), "style", "pre"), "blocks/1/norm1.*", ("bert",)),
    Mistake("norm last", lambda m: setattr(last(m), "style", "post"), "blocks/1/(attn/[qkv]|attn_in)", ("gpt2", "vit")),
    Mistake(
        "tied", lambda m: changed(m.head.kernel, lambda k: m.embed.embedding[...].T), "logits", ("llama", "gpt_neox")
    ),
    Mistake(
        "no scale of embeddings",
        lambda m: configured(m, embedding_scale=None),
        "(embedded|embed_norm.*)",
        ("gemma", "gemma2"),
        original=r"(mul|lift_fresh)\(.*\(model/model, .*",
    ),
    Mistake("no cap of logits", lambda m: configured(m, logit_cap=None), "logits", ("gemma2",)),
    Mistake(
        "no cap of scores", lambda m: setattr(last(m).attn, "cap", None), "blocks/1/attn/(scores|weights)", ("gemma2",)
    ),
    Mistake(
        "norm without offset",
        lambda m: changed(last(m).norm1.scale, lambda s: s - 1),
        "blocks/1/norm1.*",
        ("gemma", "gemma3"),
    ),
    Mistake(
        "no norm after attention",
        lambda m: setattr(last(m), "attn_norm", lambda x: x),
        "blocks/1/(attn_norm|mid)",
        ("gemma2",),
    ),
    Mistake("layer norm", layer_norm, "blocks/1/norm1.*", LLAMAS),
    Mistake(
        "embeddings off by one",
        lambda m: changed(m.embed.embedding, lambda e: jnp.roll(e, 1, 0)),
        "(embedded|embed_norm.*)",
        ("gpt2", "gemma"),
    ),
    Mistake("no types", lambda m: without(m.types.embedding), "(embedded|embed_norm.*)", ("bert",)),
    Mistake(
        "patches", lambda m: changed(m.patches.kernel, lambda k: k.swapaxes(0, 1)), "(embedded|embed_norm.*)", ("vit",)
    ),
    Mistake(
        "colors", lambda m: changed(m.patches.kernel, lambda k: k[:, :, ::-1]), "(embedded|embed_norm.*)", ("vit",)
    ),
    Mistake("first token", lambda m: without(m.first), "(embedded|embed_norm.*)", ("vit",)),
    Mistake(
        "no norm of queries",
        lambda m: setattr(last(m).attn, "q_norm", lambda x: x),
        "blocks/1/attn/q_rotated",
        ("qwen3",),
    ),
    Mistake(
        "blocks",
        lambda m: swap(m.blocks[0].mlp.down.kernel, last(m).mlp.down.kernel),
        "blocks/0/mlp/out",
        ("llama", "bert"),
    ),
    Mistake("scale of logits", lambda m: without(m.log_scale), "logits", ("clip",)),
    Mistake(
        "end token",
        lambda m: setattr(m.text, "config", dataclasses.replace(m.text.config, end_token=5)),
        "text/logits",
        ("clip",),
    ),
    Mistake("projection", lambda m: swap(m.text.head.kernel, m.image.head.kernel), "(text|image)/logits", ("clip",)),
    Mistake(
        "gelu of images",
        lambda m: setattr(m.image.blocks[1].mlp, "activation", jax.nn.gelu),
        "image/blocks/1/mlp/hidden",
        ("clip",),
    ),
]

PLANTED = [(name, mistake) for mistake in MISTAKES for name in mistake.models]
