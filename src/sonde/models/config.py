"""The description of a transformer as data: one form for every architecture.

An architecture's file (`architectures/`) reads the checkpoint's own config into this one. The modules know nothing of
architectures.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp

from sonde import nnx
from sonde.errors import ModelFileError
from sonde.ops.rotary import Rotary

Style = Literal["pre", "post", "sandwich", "parallel"]
"""Where the norms of a block are: before attention and MLP, after each sum, before and after each of them, or before
both, which then run in parallel."""
Norm = Literal["rms", "offset_rms", "layer"]


@dataclasses.dataclass(frozen=True)
class Kind:
    """What differs between the layers of one model: how far back they see, and their rotary embedding.

    Attributes:
        window: How many positions a query sees, including its own; all if None.
        rotary: The rotary embedding; None if there is none.
    """

    window: int | None = None
    rotary: Rotary | None = None


@dataclasses.dataclass(frozen=True)
class Config:
    """A stack of transformer blocks with embeddings before and a head after it.

    Attributes:
        architecture: The name of the architecture, as in the file that reads it.
        layers: How many blocks there are.
        width: Features of the residual stream.
        heads: Attention heads.
        key_heads: Heads of keys and values.
        depth: Features of a head.
        hidden: Features inside the MLP.
        vocabulary: How many tokens there are; 0 for a model of images.
        positions: How many positions have a learned embedding; 0 for rotary embeddings.
        position_offset: Added to positions before they are looked up.
        max_length: The longest text, in tokens.
        kinds: The kinds of layers that there are.
        kind_of: For every layer the index of its kind.
        style: Where the norms of a block are.
        shares_norm: Parallel blocks: whether attention and MLP read the same norm.
        causal: Whether a position sees only itself and those before it.
        norm: The kind of norm.
        epsilon: Of the norms.
        activation: Of the MLP, by the name that checkpoints use.
        gated: Whether the MLP is gated.
        qkv_bias: Whether queries, keys and values have biases.
        out_bias: Whether the attention's output has one.
        mlp_bias: Whether the MLP has biases.
        head_bias: Whether the output layer has one.
        qk_norm: The kind of norm on queries and keys, if any.
        scale: Of attention scores; 1/√depth if None.
        score_cap: Soft cap of attention scores.
        logit_cap: Soft cap of logits.
        embedding_scale: What embeddings are multiplied by.
        tied: Whether the output layer is the table of embeddings.
        types: How many kinds of segments have an embedding (BERT).
        embedding_norm: Whether embeddings are normalized.
        final_norm: Whether there is a norm after the last block.
        norms_first: Whether that norm applies only to the first token, for the vector of an image (CLIP).
        pooler: Whether there is a pooler (BERT).
        pooling: How the vector of a sentence is made, if the checkpoint specifies it.
        pairs: Whether there is a head that predicts if the second segment follows the first (BERT).
        head: The head of the model: none, `logits` over tokens, `masked` (BERT's), `classes`, or a `projection`.
        head_activation: Of the head for masked tokens; None: as in the MLP.
        classes: How many classes or projected features the head has.
        image: The height and width of images; 0 for a model of texts.
        patch: The height and width of patches.
        channels: Of images.
        patch_bias: Whether the embedding of patches has a bias.
        end_token: CLIP's text tower: the token whose position is the text's vector.
        source: The checkpoint's own config, as it will be saved.
    """

    architecture: str
    layers: int
    width: int
    heads: int
    hidden: int
    depth: int
    key_heads: int
    vocabulary: int = 0
    positions: int = 0
    position_offset: int = 0
    max_length: int = 0
    kinds: tuple[Kind, ...] = (Kind(),)
    kind_of: tuple[int, ...] = ()
    style: Style = "pre"
    shares_norm: bool = False
    causal: bool = True
    norm: Norm = "rms"
    epsilon: float = 1e-6
    activation: str = "silu"
    gated: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    qk_norm: Norm | None = None
    scale: float | None = None
    score_cap: float | None = None
    logit_cap: float | None = None
    embedding_scale: float | None = None
    tied: bool = False
    types: int = 0
    embedding_norm: bool = False
    final_norm: bool = True
    norms_first: bool = False
    pooler: bool = False
    pooling: Literal["mean", "first"] | None = None
    pairs: bool = False
    head: Literal["none", "logits", "masked", "classes", "projection"] = "none"
    head_activation: str | None = None
    classes: int = 0
    image: int = 0
    patch: int = 0
    channels: int = 3
    patch_bias: bool = True
    end_token: int | None = None
    source: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.kind_of:
            object.__setattr__(self, "kind_of", (0,) * self.layers)
        for name in ("layers", "width", "heads", "key_heads", "depth", "hidden"):
            if getattr(self, name) < 1:
                raise ModelFileError(f"a model cannot have {name}={getattr(self, name)}.")
        if self.heads % self.key_heads:
            raise ModelFileError(
                f"{self.heads} attention heads cannot share {self.key_heads} heads of keys and values."
            )
        if self.image and (self.patch < 1 or self.image % self.patch):
            raise ModelFileError(f"images of {self.image} pixels have no whole number of patches of {self.patch}.")
        if any(not 0 <= kind < len(self.kinds) for kind in self.kind_of):
            raise ModelFileError(
                f"there are {len(self.kinds)} kinds of layers, but layers have the kinds {self.kind_of}."
            )
        for name in filter(None, (self.activation, self.head_activation)):
            activation(name)
        if len(self.kind_of) != self.layers:
            raise ModelFileError(f"{self.layers} layers, but {len(self.kind_of)} are described: {self.kind_of}.")

    def kind(self, layer: int) -> Kind:
        """The kind of a layer."""
        return self.kinds[self.kind_of[layer]]

    def new_norm(self, features: int, *, rngs: nnx.Rngs, kind: Norm | None = None, **options: Any) -> nnx.Module:
        """A norm of this model."""
        made = {"rms": nnx.RMSNorm, "offset_rms": nnx.OffsetRMSNorm, "layer": nnx.LayerNorm}[kind or self.norm]
        return made(features, epsilon=self.epsilon, rngs=rngs, **options)


def activation(name: str) -> Callable[[jax.Array], jax.Array]:
    """A nonlinearity by the name that checkpoints use.

    Raises:
        ModelFileError: The name is unknown.

    Example:
        >>> activation("relu").__name__
        'relu'
    """
    function = ACTIVATIONS.get(name)
    if function is None:
        raise ModelFileError(f"unknown activation {name!r}; known are {', '.join(sorted(ACTIVATIONS))}.")
    return function


def _gelu_exact(x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x, approximate=False)


def _quick_gelu(x: jax.Array) -> jax.Array:
    return x * jax.nn.sigmoid(1.702 * x)


def _gelu_10(x: jax.Array) -> jax.Array:
    return jnp.clip(_gelu_exact(x), -10, 10)


def _squared_relu(x: jax.Array) -> jax.Array:
    return jnp.square(jax.nn.relu(x))


def _linear(x: jax.Array) -> jax.Array:
    return x


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "gelu": _gelu_exact,
    "gelu_python": _gelu_exact,
    "gelu_new": jax.nn.gelu,
    "gelu_fast": jax.nn.gelu,
    "gelu_pytorch_tanh": jax.nn.gelu,
    "gelu_python_tanh": jax.nn.gelu,
    "gelu_accurate": jax.nn.gelu,
    "gelu_10": _gelu_10,
    "quick_gelu": _quick_gelu,
    "leaky_relu": jax.nn.leaky_relu,
    "linear": _linear,
    "mish": jax.nn.mish,
    "relu": jax.nn.relu,
    "relu2": _squared_relu,
    "relu6": jax.nn.relu6,
    "sigmoid": jax.nn.sigmoid,
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "tanh": jnp.tanh,
}
