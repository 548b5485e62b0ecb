"""Sparse dictionaries: autoencoders and transcoders with few active features.

    features = activation(x @ encoder + encoder_bias)        for an autoencoder, x minus the decoder's bias
    output   = features @ decoder + decoder_bias

Three activations: `"relu"`; `"topk"`, the `k` largest of those above zero; `"jumprelu"`, those above a threshold that
each feature learns. The features are a site, `features`: where a dictionary is spliced into a program, they can be
captured, ablated and attributed like any other value.
"""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp

import sonde
from sonde import nnx

Activation = Literal["relu", "topk", "jumprelu"]
ACTIVATIONS = ("relu", "topk", "jumprelu")


class Dictionary(nnx.Module):
    """A sparse autoencoder, or a transcoder if it predicts a value other than its input.

    Args:
        d_in: The width of the input.
        n_features: How many features there are.
        activation: `"relu"`, `"topk"` or `"jumprelu"`.
        k: How many features are active at most, for `"topk"`.
        d_out: The width of the output; by default that of the input.
        threshold: The initial threshold of each feature, for `"jumprelu"`.
        centred: Whether the decoder's bias is subtracted from the input; by default for autoencoders only.
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
        d_out: int | None = None,
        threshold: float = 0.01,
        centred: bool | None = None,
        rngs: nnx.Rngs,
    ) -> None:
        if activation not in ACTIVATIONS:
            raise ValueError(f"a dictionary's activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")
        if (activation == "topk") != (k is not None):
            raise ValueError(f"k= goes with activation='topk', got activation={activation!r} and k={k}")
        if k is not None and not 1 <= k <= n_features:
            raise ValueError(f"k must be between 1 and the number of features, {n_features}, got {k}")
        self.d_in, self.d_out, self.n_features = d_in, d_in if d_out is None else d_out, n_features
        self.activation, self.k = activation, k
        self.centred = self.d_out == d_in and d_out is None if centred is None else centred
        if self.centred and self.d_out != d_in:
            raise ValueError(f"centred= is for autoencoders, but the input has width {d_in}, the output {self.d_out}")
        # Decoder rows have length one, and the encoder is their transpose: each feature first reads what it writes.
        decoder = jax.random.normal(rngs.params(), (n_features, self.d_out))
        decoder = decoder / jnp.linalg.norm(decoder, axis=1, keepdims=True)
        if self.d_out == d_in:
            encoder = decoder.T
        else:
            encoder = jax.random.normal(rngs.params(), (d_in, n_features)) / jnp.sqrt(d_in)
        self.encoder, self.decoder = nnx.Param(encoder), nnx.Param(decoder)
        self.encoder_bias, self.decoder_bias = nnx.Param(jnp.zeros(n_features)), nnx.Param(jnp.zeros(self.d_out))
        if activation == "jumprelu":
            self.log_threshold = nnx.Param(jnp.full(n_features, jnp.log(threshold)))

    @property
    def threshold(self) -> jax.Array:
        """The threshold above which each feature is active, for the activation `"jumprelu"`."""
        return jnp.exp(self.log_threshold[...])

    def pre_activations(self, x: Any) -> jax.Array:
        """The inputs of the activation."""
        x = jnp.asarray(x)
        if x.shape[-1:] != (self.d_in,):
            raise ValueError(f"the dictionary takes values of width {self.d_in}, got shape {x.shape}")
        if self.centred:
            x = x - self.decoder_bias[...].astype(x.dtype)
        return x @ self.encoder[...].astype(x.dtype) + self.encoder_bias[...].astype(x.dtype)

    def activate(self, before: Any) -> jax.Array:
        """The features, from what `pre_activations` returned."""
        if self.activation == "jumprelu":
            return jumprelu(before, self.threshold.astype(before.dtype))
        positive = jax.nn.relu(before)
        if self.k is None:
            return positive
        values, indices = jax.lax.top_k(positive, self.k)
        return jnp.put_along_axis(jnp.zeros_like(positive), indices, values, axis=-1, inplace=False)

    def encode(self, x: Any) -> jax.Array:
        """The features of a value."""
        return sonde.sow(self.activate(self.pre_activations(x)), "features")

    def decode(self, features: Any) -> jax.Array:
        """The value that features represent."""
        dtype = jnp.asarray(features).dtype
        return features @ self.decoder[...].astype(dtype) + self.decoder_bias[...].astype(dtype)

    def __call__(self, x: Any) -> jax.Array:
        """The reconstruction of a value; for a transcoder, its prediction."""
        return self.decode(self.encode(x))


BANDWIDTH = 0.05  # the range around a threshold that contributes to its gradient


@jax.custom_jvp
def jumprelu(x: Any, threshold: Any) -> jax.Array:
    """Numbers above a threshold, and zero elsewhere. The threshold gets a gradient from numbers near it."""
    return jnp.where(x > threshold, x, 0)


@jumprelu.defjvp
def _jumprelu_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    x, threshold = primals
    near = jnp.abs(x - threshold) < BANDWIDTH / 2
    slope = jnp.where(near, -threshold / BANDWIDTH, 0).astype(x.dtype)
    return jumprelu(x, threshold), jnp.where(x > threshold, tangents[0], 0) + slope * tangents[1]


@jax.custom_jvp
def step(x: Any, threshold: Any) -> jax.Array:
    """One above a threshold and zero elsewhere, to count active features; the threshold has a gradient."""
    return jnp.where(x > threshold, 1.0, 0.0).astype(x.dtype)


@step.defjvp
def _step_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    x, threshold = primals
    near = jnp.abs(x - threshold) < BANDWIDTH / 2
    return step(x, threshold), jnp.where(near, -1 / BANDWIDTH, 0).astype(x.dtype) * tangents[1]
