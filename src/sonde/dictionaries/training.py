"""Training a dictionary on stored activations, or on batches as they come.

The loss is the squared error of the output plus a term that keeps features few: for `"relu"` the sum of the features,
each times the length of its decoder row, and for `"gated"` the same of the gates; for `"jumprelu"` the number of active
features, whose thresholds and encoder learn from numbers near a threshold; for `"topk"` and `"batchtopk"` nothing,
because `k` fixes the number. For `"relu"` and `"gated"`, decoder rows start short, grow as the loss wants, and are made
one long at the end; for all others, they always have length one.

Features that were not active for a while are dead: they are reset to inputs that the dictionary reconstructs badly.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from sonde import nnx
from sonde.dictionaries.cross_layer import CrossLayerTranscoder
from sonde.dictionaries.dictionary import Dictionary, step


@dataclasses.dataclass(frozen=True)
class History:
    """Numbers of a training run, one for each report.

    Attributes:
        steps: The steps at which they were taken.
        loss: The loss.
        error: The squared error, as a fraction of the target's variance.
        active: How many features were active per input.
        dead: How many features were dead.
        revived: How many features were reset in total.
    """

    steps: list[int]
    loss: list[float]
    error: list[float]
    active: list[float]
    dead: list[int]
    revived: int


Trained = Dictionary | CrossLayerTranscoder


def objective(
    dictionary: Trained, x: jax.Array, y: jax.Array, sparsity: jax.Array | float
) -> tuple[jax.Array, dict[str, Any]]:
    """The loss for inputs `x` and targets `y`, and numbers that describe it.

    Args:
        dictionary: What is trained.
        x: Rows by width; for a cross-layer transcoder, rows by layers by width.
        y: The same for the targets.
        sparsity: The weight of the term that keeps features few.
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
    squared = jnp.sum((dictionary.decode(features) + skipped - y) ** 2, -1)
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
    return loss, _numbers(y, squared, [features])


def _sparsity(dictionary: Dictionary, before: jax.Array, features: jax.Array) -> jax.Array | float:
    """What keeps features few; a feature that writes to several layers counts by the length of its whole row."""
    lengths = jnp.linalg.norm(dictionary.decoder[...], axis=1)
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


def train(
    dictionary: Trained,
    batches: Iterable[Any],
    *,
    steps: int,
    sparsity: float = 1e-3,
    learning_rate: float = 1e-3,
    warm_up: int = 100,
    dead_after: int = 500,
    report_every: int = 100,
    seed: int = 0,
) -> History:
    """Trains a dictionary in place.

    Args:
        dictionary: What to train.
        batches: Minibatches: arrays of rows for an autoencoder, pairs of inputs and targets for a transcoder, or dicts
                with one or two arrays, as `Store.batches` returns them. There must be one per step, or a sequence,
                which is repeated. For a cross-layer transcoder, pairs of lists, with an array for each layer, or dicts
                with the inputs of all layers and then their targets.
        steps: How many steps to take.
        sparsity: The weight of the term that keeps features few; it grows from zero during warm-up.
        learning_rate: Of Adam; it falls to zero over the last fifth of the steps.
        warm_up: How many steps the learning rate and the sparsity take to reach their values.
        dead_after: A feature that was inactive for this many steps is reset; 0 for never.
        report_every: How many steps apart the numbers of the history are.
        seed: For the choice of inputs that dead features are reset to.

    Returns:
        The history of the run.

    Example:
        >>> import jax
        >>> from sonde import nnx
        >>> from sonde.dictionaries import Dictionary, train
        >>> rows = jax.random.normal(jax.random.key(0), (256, 8))
        >>> autoencoder = Dictionary(8, 16, activation="topk", k=4, rngs=nnx.Rngs(0))
        >>> history = train(autoencoder, [rows], steps=200, report_every=50)
        >>> history.error[-1] < history.error[0]
        True
    """
    falling = optax.linear_schedule(learning_rate, 0.0, max(steps // 5, 1), steps - steps // 5)

    def rate(i: Any) -> Any:
        return falling(i) * jnp.minimum(1.0, (i + 1) / max(warm_up, 1))

    optimizer = nnx.Optimizer(dictionary, optax.adam(rate, b1=0.9, b2=0.999), wrt=nnx.Param)
    parts = parts_of(dictionary)
    silent = np.zeros(sum(part.n_features for part in parts), np.int64)
    rng = np.random.default_rng(seed)
    history = History([], [], [], [], [], 0)
    revived = 0
    for number, (x, y) in zip(range(steps), pairs(batches, dictionary)):
        weight = sparsity * min(1.0, (number + 1) / max(warm_up, 1))
        loss, numbers = _step(dictionary, optimizer, x, y, jnp.float32(weight))
        silent = np.where(np.asarray(numbers["fired"]), 0, silent + 1)
        dead = np.flatnonzero(silent >= dead_after) if dead_after else np.zeros(0, int)
        if len(dead) and number < steps - steps // 5:
            revived += _revive(dictionary, optimizer, dead, x, y, np.asarray(numbers["squared"]), rng)
            silent[dead] = 0
        if number % report_every == 0 or number == steps - 1:
            history.steps.append(number)
            history.loss.append(float(loss))
            history.error.append(float(numbers["error"]))
            history.active.append(float(numbers["active"]))
            history.dead.append(len(dead))
    if not history.steps or history.steps[-1] != steps - 1:
        raise ValueError(f"train: the batches ended before step {steps}; give a sequence, or more batches")
    for part in parts:
        part.rescale()
    return dataclasses.replace(history, revived=revived)


@nnx.jit
def _step(
    dictionary: Trained, optimizer: nnx.Optimizer, x: jax.Array, y: jax.Array, sparsity: jax.Array | float
) -> Any:
    wrt = nnx.DiffState(0, nnx.Param)
    (loss, numbers), grads = nnx.value_and_grad(objective, argnums=wrt, has_aux=True)(dictionary, x, y, sparsity)
    parts = parts_of(dictionary)
    slopes = [grads["parts"][i] for i in range(len(parts))] if isinstance(dictionary, CrossLayerTranscoder) else [grads]
    for part, of_part in zip(parts, slopes):
        if part.has_unit_rows:
            # The gradient along a decoder row would only change its length, which stays one.
            decoder, slope = part.decoder[...], of_part["decoder"][...]
            of_part["decoder"][...] = slope - jnp.sum(slope * decoder, 1, keepdims=True) * decoder
    optimizer.update(dictionary, grads)
    for part, least in zip(parts, numbers["least"]):
        if part.has_unit_rows:
            decoder = part.decoder[...]
            part.decoder[...] = decoder / jnp.maximum(jnp.linalg.norm(decoder, axis=1, keepdims=True), 1e-8)
        if part.activation == "jumprelu":
            # A threshold is learned as it is: by its logarithm, steps of Adam could not move a small one far enough.
            part.threshold[...] = jnp.maximum(part.threshold[...], 0)
        elif part.activation == "batchtopk":
            threshold = part.threshold[...]
            moved = jnp.where(threshold == 0, least, threshold + 0.01 * (least - threshold))
            part.threshold[...] = jnp.where(jnp.isfinite(least), moved, threshold)
    return loss, numbers


def pairs(batches: Iterable[Any], dictionary: Trained) -> Iterator[tuple[jax.Array, jax.Array]]:
    """Inputs and targets, from minibatches in any of the forms that `train` takes."""
    while True:
        for batch in batches:
            parts = [v for k, v in batch.items() if not k.startswith("keys/")] if isinstance(batch, dict) else batch
            parts = list(parts) if isinstance(parts, (tuple, list)) else [parts]
            if isinstance(dictionary, CrossLayerTranscoder):
                yield _layers(parts, dictionary.layers)
                continue
            wanted = (1,) if dictionary.kind == "autoencoder" else (2,)
            if len(parts) not in wanted:
                needs = "one array" if dictionary.kind == "autoencoder" else "inputs and targets"
                raise ValueError(
                    f"a batch for a dictionary of the kind {dictionary.kind} is {needs}, got {len(parts)} arrays"
                )
            x, y = (jnp.asarray(p, jnp.float32) for p in (parts[0], parts[-1]))
            yield x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1])
        if iter(batches) is batches:  # an iterator cannot be repeated
            return


def _layers(parts: Sequence[Any], layers: int) -> tuple[jax.Array, jax.Array]:
    """Inputs and targets of a cross-layer transcoder, rows by layers by width."""
    sides = parts if len(parts) == 2 and layers > 1 else (parts[:layers], parts[layers:])
    if any(len(side) != layers for side in sides):
        raise ValueError(
            f"a batch for a cross-layer transcoder of {layers} layers is a pair of {layers} inputs and {layers} "
            f"targets, or all of these in a row, got {len(parts)} parts"
        )
    rows = [[jnp.asarray(p, jnp.float32).reshape(-1, p.shape[-1]) for p in side] for side in sides]
    return jnp.stack(rows[0], 1), jnp.stack(rows[1], 1)


def _revive(
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
        sides = [(np.asarray(x), np.asarray(y) - np.asarray(dictionary(x)))]
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
