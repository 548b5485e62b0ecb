"""Dead features become inputs that the dictionary reconstructs badly."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from sonde import nnx
from sonde.dictionaries.cross_layer import CrossLayerTranscoder
from sonde.dictionaries.dictionary import Dictionary
from sonde.dictionaries.objective import Trained, parts_of


def revive(
    dictionary: Trained,
    optimizer: nnx.Optimizer,
    dead: np.ndarray,
    x: jax.Array,
    y: jax.Array,
    squared: np.ndarray,
    rng: np.random.Generator,
) -> int:
    """Resets dead features to badly reconstructed inputs, chosen in proportion to their error; returns how many."""
    weights = squared.astype(np.float64) ** 2
    total = weights.sum()
    if not np.isfinite(total) or total <= 0:
        return 0
    if isinstance(dictionary, CrossLayerTranscoder):
        wrong = np.asarray(y) - np.stack(dictionary.decode(_all_features(dictionary, x)), 1)
        sides = [(np.asarray(x)[:, i], wrong[:, i:].reshape(len(wrong), -1)) for i in range(dictionary.layers)]
    else:
        before = dictionary.pre_activations(x)
        output = dictionary.decode(dictionary.activate(before)) + dictionary.skipped(x)
        sides = [(np.asarray(x), np.asarray(y) - np.asarray(output))]
    first = 0
    for i, (part, (inputs, wrong)) in enumerate(zip(parts_of(dictionary), sides)):
        own = dead[(dead >= first) & (dead < first + part.n_features)] - first
        first += part.n_features
        if len(own):
            chosen = rng.choice(len(weights), size=len(own), p=weights / total)
            _reset(part, own, inputs[chosen], wrong[chosen])
            _forget(optimizer, own, i if isinstance(dictionary, CrossLayerTranscoder) else None)
    return len(dead)


def _all_features(dictionary: CrossLayerTranscoder, x: jax.Array) -> list[jax.Array]:
    return [part.activate(part.pre_activations(x[:, i])) for i, part in enumerate(dictionary.parts)]


def _reset(dictionary: Dictionary, dead: np.ndarray, inputs: np.ndarray, wrong: np.ndarray) -> None:
    """Makes dead features read inputs and write what the output lacks there."""
    rows = wrong / np.maximum(np.linalg.norm(wrong, axis=1, keepdims=True), 1e-8)
    inputs = inputs - (np.asarray(dictionary.decoder_bias[...]) if dictionary.centered else 0.0)
    inputs = inputs / np.maximum(np.linalg.norm(inputs, axis=1, keepdims=True), 1e-8)
    alive = np.setdiff1d(np.arange(dictionary.n_features), dead)
    encoder = np.array(dictionary.encoder[...])
    typical = np.linalg.norm(encoder[:, alive], axis=0).mean() if len(alive) else 1.0
    encoder[:, dead] = 0.2 * typical * inputs.T
    decoder, bias = np.array(dictionary.decoder[...]), np.array(dictionary.encoder_bias[...])
    lengths = np.linalg.norm(decoder[alive], axis=1).mean() if len(alive) else 1.0
    decoder[dead], bias[dead] = rows * lengths, 0.0
    for name in ("gate_bias", "log_gain") if dictionary.activation == "gated" else ():
        getattr(dictionary, name)[...] = getattr(dictionary, name)[...].at[dead].set(0)
    dictionary.encoder[...], dictionary.decoder[...] = jnp.asarray(encoder), jnp.asarray(decoder)
    dictionary.encoder_bias[...] = jnp.asarray(bias)


def _forget(optimizer: nnx.Optimizer, dead: np.ndarray, part: int | None) -> None:
    """Clears the optimizer state of features that were reset, of a part of a cross-layer transcoder if one is named."""
    for path, variable in nnx.to_flat_state(nnx.state(optimizer, nnx.optimizer.OptState)):
        value = variable[...]
        if part is not None and ("parts", part) not in itertools.pairwise(path):
            continue
        if "decoder" in path and value.ndim == 2:
            variable[...] = value.at[dead].set(0)
        elif "encoder" in path and value.ndim == 2:
            variable[...] = value.at[:, dead].set(0)
        elif {"encoder_bias", "threshold", "gate_bias", "log_gain"} & set(path):
            variable[...] = value.at[dead].set(0)
