"""What dictionaries are trained to make small.

The loss is the squared error of the output plus a term that keeps features few: for `"relu"` the sum of the features,
each times the length of its decoder row, and for `"gated"` the same of the gates; for `"jumprelu"` the number of active
features, whose thresholds and encoder learn from numbers near a threshold; for `"topk"` and `"batchtopk"` nothing,
because `k` fixes the number.

With ghosts, dead features get a gradient of their own: as if they were active by the exponential of their input, they
learn to write half of what the output lacks. That part of the loss is scaled to be as large as the error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from sonde.dictionaries.cross_layer import CrossLayerTranscoder
from sonde.dictionaries.dictionary import Dictionary, step

Trained = Dictionary | CrossLayerTranscoder


def objective(
    dictionary: Trained, x: jax.Array, y: jax.Array, sparsity: jax.Array | float, dead: jax.Array | None = None
) -> tuple[jax.Array, dict[str, Any]]:
    """The loss for inputs `x` and targets `y`, and numbers that describe it.

    Args:
        dictionary: What is trained.
        x: Rows by width; for a cross-layer transcoder, rows by layers by width.
        y: The same for the targets.
        sparsity: The weight of the term that keeps features few.
        dead: Which features get the gradient of ghosts.
    """
    if isinstance(dictionary, CrossLayerTranscoder):
        befores = [part.pre_activations(x[:, i]) for i, part in enumerate(dictionary.parts)]
        features = [training_features(part, before) for part, before in zip(dictionary.parts, befores)]
        squared = jnp.sum((jnp.stack(dictionary.decode(features), 1) - y) ** 2, (1, 2))
        loss = jnp.mean(squared)
        for part, before, active in zip(dictionary.parts, befores, features):
            loss += sparsity * _sparsity(part, before, active)
        return loss, _numbers(y, squared, features)
    before = dictionary.pre_activations(x)
    features = training_features(dictionary, before)
    skipped = dictionary.skipped(x)
    residual = y - dictionary.decode(features) - skipped
    squared = jnp.sum(residual**2, -1)
    loss = jnp.mean(squared)
    for n in dictionary.nested:
        some = jnp.where(jnp.arange(dictionary.n_features) < n, features, 0)
        loss += jnp.mean(jnp.sum((dictionary.decode(some) + skipped - y) ** 2, -1))
    loss /= 1 + len(dictionary.nested)
    loss += sparsity * _sparsity(dictionary, before, features)
    if dictionary.activation == "gated":
        # Whether a feature is active has no gradient, so the gates learn from reconstructing the value themselves.
        gates = jax.nn.relu(dictionary.gates(before))
        loss += jnp.mean(jnp.sum((dictionary.decode(gates) + skipped - y) ** 2, -1))
    if dead is not None:
        loss += _of_ghosts(dictionary, before, jax.lax.stop_gradient(residual), dead)
    return loss, _numbers(y, squared, [features])


def _of_ghosts(dictionary: Dictionary, before: jax.Array, residual: jax.Array, dead: jax.Array) -> jax.Array:
    """What dead features add to the loss: how far they are from writing what the output lacks."""
    ghosts = jnp.where(dead, jnp.exp(jnp.minimum(before, 10)), 0) @ dictionary.decoder[...]
    lengths = (jnp.linalg.norm(each, axis=-1, keepdims=True) for each in (residual, ghosts))
    lacking, written = (jax.lax.stop_gradient(length) for length in lengths)
    missed = jnp.sum((residual - ghosts * lacking / (2 * written + 1e-6)) ** 2, -1)
    as_large = jax.lax.stop_gradient(jnp.sum(residual**2, -1) / (missed + 1e-6))
    return jnp.where(jnp.any(dead), jnp.mean(missed * as_large), 0)


def _sparsity(dictionary: Dictionary, before: jax.Array, features: jax.Array) -> jax.Array | float:
    """What keeps features few; a feature that writes to several layers counts by the length of its whole row."""
    lengths = dictionary.row_lengths()
    match dictionary.activation:
        case "relu":
            return jnp.mean(jnp.sum(features * lengths, -1))
        case "jumprelu":
            return jnp.mean(jnp.sum(step(before, dictionary.threshold[...]), -1))
        case "gated":
            return jnp.mean(jnp.sum(jax.nn.relu(dictionary.gates(before)) * lengths, -1))
        case _:
            return 0.0


def _numbers(y: jax.Array, squared: jax.Array, features: Sequence[jax.Array]) -> dict[str, Any]:
    spread = (y - jnp.mean(y, 0)) ** 2
    variance = jnp.mean(jnp.sum(spread.reshape(len(y), -1), -1))
    return {
        "error": jnp.mean(squared) / jnp.maximum(variance, 1e-12),
        "active": sum(jnp.mean(jnp.sum(part > 0, -1)) for part in features),
        "fired": jnp.concatenate([jnp.any(part > 0, 0) for part in features]),
        "squared": squared,
        "least": [jnp.min(jnp.where(part > 0, part, jnp.inf)) for part in features],
    }


def parts_of(dictionary: Trained) -> Sequence[Dictionary]:
    """The transcoders of a cross-layer transcoder; of anything else, itself alone."""
    return tuple(dictionary.parts) if isinstance(dictionary, CrossLayerTranscoder) else (dictionary,)


def training_features(dictionary: Dictionary, before: jax.Array) -> jax.Array:
    """The features while training, which for `"batchtopk"` depend on the whole batch."""
    if dictionary.activation != "batchtopk":
        return dictionary.activate(before)
    positive = jax.nn.relu(before)
    most = (dictionary.k or 0) * (before.size // dictionary.n_features)
    least = jax.lax.stop_gradient(jax.lax.top_k(positive.reshape(-1), most)[0][-1])
    return jnp.where(positive >= least, positive, 0)
