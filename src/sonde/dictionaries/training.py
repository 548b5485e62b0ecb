"""Training dictionaries on stored activations, or on batches as they come.

For `"relu"` and `"gated"`, decoder rows start short, grow as the loss wants, and are made one long at the end; for all
others, they always have length one. Features that were not active for a while are dead: they become inputs that the
dictionary reconstructs badly, or get a gradient of their own.

A step does not wait for the one before: what the host needs, it reads at the end and where dead features are looked
for. A run that writes checkpoints goes on where it was interrupted, and ends with the same numbers.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, overload

import jax
import jax.numpy as jnp
import numpy as np
import optax

from sonde import nnx
from sonde._atomic_files import replaced_file
from sonde.dictionaries.batches import pairs
from sonde.dictionaries.cross_layer import CrossLayerTranscoder
from sonde.dictionaries.objective import Trained, objective, parts_of
from sonde.dictionaries.resampling import revive
from sonde.errors import StoreError

Dead = Literal["resample", "ghosts"]


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


@dataclasses.dataclass(frozen=True)
class _Settings:
    """What a run depends on, besides the batches; a checkpoint is only for the same."""

    steps: int
    sparsity: float
    learning_rate: float
    warm_up: int
    dead_after: int
    dead: Dead
    report_every: int
    seed: int

    @property
    def checked_every(self) -> int:
        """How many steps apart dead features are looked for: the host waits for the device there."""
        return max(1, min(self.dead_after // 5, 50))

    def optimizer(self) -> optax.GradientTransformation:
        """Adam, whose rate rises during warm-up and falls to zero over the last fifth."""
        last = max(self.steps // 5, 1)
        falling = optax.linear_schedule(self.learning_rate, 0.0, last, self.steps - self.steps // 5)
        return optax.adam(lambda i: falling(i) * jnp.minimum(1.0, (i + 1) / max(self.warm_up, 1)), b1=0.9, b2=0.999)


class _Options(TypedDict, total=False):
    """The arguments of `train` that are the same for one dictionary and for several."""

    learning_rate: float
    warm_up: int
    dead_after: int
    dead: Dead
    report_every: int
    seed: int
    mesh: jax.sharding.Mesh | None
    checkpoint: str | os.PathLike[str] | None
    checkpoint_every: int


@overload
def train(
    dictionary: Trained, batches: Iterable[Any], *, steps: int, sparsity: float = 1e-3, **options: Unpack[_Options]
) -> History: ...
@overload
def train(
    dictionary: Sequence[Trained],
    batches: Iterable[Any],
    *,
    steps: int,
    sparsity: float | Sequence[float] = 1e-3,
    **options: Unpack[_Options],
) -> list[History]: ...
def train(
    dictionary: Trained | Sequence[Trained],
    batches: Iterable[Any],
    *,
    steps: int,
    sparsity: float | Sequence[float] = 1e-3,
    learning_rate: float = 1e-3,
    warm_up: int = 100,
    dead_after: int = 500,
    dead: Dead = "resample",
    report_every: int = 100,
    seed: int = 0,
    mesh: jax.sharding.Mesh | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 1000,
) -> History | list[History]:
    """Trains a dictionary in place, or several of one kind on the same batches.

    Args:
        dictionary: What to train.
        batches: Minibatches: arrays of rows for an autoencoder, pairs of inputs and targets for a transcoder, or dicts
                with one or two arrays, as `Store.batches` returns them. There must be one per step, or a sequence,
                which is repeated. For a cross-layer transcoder, pairs of lists, with an array for each layer, or dicts
                with the inputs of all layers and then their targets. For a crosscoder, an array for each site.
        steps: How many steps to take.
        sparsity: The weight of the term that keeps features few; it grows from zero during warm-up. For several
            dictionaries, one weight or one for each.
        learning_rate: Of Adam; it falls to zero over the last fifth of the steps.
        warm_up: How many steps the learning rate and the sparsity take to reach their values.
        dead_after: A feature that was inactive for this many steps is dead; 0 for never.
        dead: What is done about dead features: `"resample"` resets them to inputs that are reconstructed badly,
            `"ghosts"` gives them a gradient towards what the output lacks.
        report_every: How many steps apart the numbers of the history are.
        seed: For the choice of inputs that dead features are reset to.
        mesh: Devices: the rows of a batch are spread along the mesh's first axis, and features along its second, if it
            has one.
        checkpoint: A folder. The run is written there every `checkpoint_every` steps, and continued if it is there:
            the batches of the steps that were taken are drawn and left out.
        checkpoint_every: How many steps apart checkpoints are.

    Returns:
        The history of the run; of each, for several dictionaries.

    Raises:
        ValueError: The batches end too early or do not fit, or a checkpoint is of another run.
        StoreError: A checkpoint is damaged.

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
    several = isinstance(dictionary, Sequence)
    trained = list(dictionary) if isinstance(dictionary, Sequence) else [dictionary]
    weights = list(sparsity) if isinstance(sparsity, Sequence) else [sparsity] * len(trained)
    _check(trained, weights, dead, checkpoint_every)
    runs = []
    for i, (each, weight) in enumerate(zip(trained, weights)):
        settings = _Settings(steps, weight, learning_rate, warm_up, dead_after, dead, report_every, seed)
        runs.append(_Run(each, settings, mesh, None if checkpoint is None else Path(checkpoint) / f"{i}.npz"))
    done = {run.step for run in runs}
    if len(done) > 1:
        raise ValueError(f"train: the checkpoints in {str(checkpoint)!r} are of different steps: {sorted(done)}")
    (first,) = done
    for x, y in itertools.islice(pairs(batches, trained[0]), first, steps):
        placed = [_placed(z, mesh, 0) for z in (x, y)]
        for run in runs:
            run.take(*placed)
            if checkpoint is not None and (run.step % checkpoint_every == 0 or run.step == steps):
                run.write()
    if runs[0].step < steps:
        raise ValueError(f"train: the batches ended before step {steps}; give a sequence, or more batches")
    histories = [run.finished() for run in runs]
    return histories if several else histories[0]


def _check(trained: Sequence[Trained], weights: Sequence[float], dead: str, checkpoint_every: int) -> None:
    if not trained or len(weights) != len(trained):
        raise ValueError(f"train: there are {len(trained)} dictionaries and {len(weights)} weights of sparsity")
    if len({id(each) for each in trained}) < len(trained):
        raise ValueError("train: a dictionary is in the list twice")
    read = [(type(each), *((p.kind, p.d_in, p.d_out) for p in parts_of(each))) for each in trained]
    if len(set(read)) > 1:
        raise ValueError("train: dictionaries that share batches must read and write values of one kind and width")
    if dead not in ("resample", "ghosts"):
        raise ValueError(f"train: dead= is 'resample' or 'ghosts', got {dead!r}")
    if dead == "ghosts" and isinstance(trained[0], CrossLayerTranscoder):
        raise ValueError("train: dead='ghosts' is not for cross-layer transcoders; use 'resample'")
    if checkpoint_every < 1:
        raise ValueError(f"train: checkpoint_every is at least 1, got {checkpoint_every}")


class _Run:
    """A dictionary while it is trained.

    Args:
        dictionary: What is trained, in place.
        settings: How.
        mesh: The devices.
        file: The checkpoint: read if it exists.
    """

    def __init__(
        self, dictionary: Trained, settings: _Settings, mesh: jax.sharding.Mesh | None, file: Path | None
    ) -> None:
        self._dictionary, self._settings, self._mesh, self._file = dictionary, settings, mesh, file
        self._optimizer = nnx.Optimizer(dictionary, settings.optimizer(), wrt=nnx.Param)
        self.step = 0
        self._silent = jnp.zeros(sum(part.n_features for part in parts_of(dictionary)), jnp.int32)
        self._random = np.random.default_rng(settings.seed)
        self._reports: list[tuple[int, Any]] = []  # numbers stay on the device until they are needed
        self._revived = 0
        if file is not None and file.is_file():
            self._read(file)
        self._spread()

    def take(self, x: jax.Array, y: jax.Array) -> None:
        """Takes a step."""
        settings, number = self._settings, self.step
        weight = settings.sparsity * min(1.0, (number + 1) / max(settings.warm_up, 1))
        ghosts = settings.dead == "ghosts" and bool(settings.dead_after)
        loss, numbers, self._silent = _step(
            self._dictionary, self._optimizer, x, y, jnp.float32(weight), self._silent, settings.dead_after, ghosts
        )
        if number % settings.report_every == 0 or number == settings.steps - 1:
            dead = jnp.sum(self._silent >= settings.dead_after) if settings.dead_after else 0
            self._reports.append((number, (loss, numbers["error"], numbers["active"], dead)))
        self.step += 1
        looked_for = settings.dead_after and settings.dead == "resample" and self.step % settings.checked_every == 0
        if looked_for and number < settings.steps - settings.steps // 5:
            self._revive(x, y, numbers["squared"])

    def _revive(self, x: jax.Array, y: jax.Array, squared: jax.Array) -> None:
        dead = np.flatnonzero(np.asarray(self._silent) >= self._settings.dead_after)
        if len(dead):
            self._revived += revive(self._dictionary, self._optimizer, dead, x, y, np.asarray(squared), self._random)
            self._silent = self._silent.at[dead].set(0)
            self._spread()

    def _spread(self) -> None:
        """Puts what belongs to features on the devices that have these features."""
        if self._mesh is None:
            return
        for path, variable in self._variables().items():
            value = variable[...]
            axis = 1 if "/encoder" in f"/{path}" and value.ndim == 2 else 0
            is_shared = value.ndim == 0 or "decoder_bias" in path or "skip" in path
            variable[...] = _placed(value, self._mesh, None if is_shared else axis, features=True)
        self._silent = _placed(self._silent, self._mesh, None)

    def _variables(self) -> dict[str, Any]:
        states = {"dictionary": nnx.state(self._dictionary), "optimizer": nnx.state(self._optimizer)}
        return {
            "/".join([side, *map(str, path)]): variable
            for side, state in states.items()
            for path, variable in nnx.to_flat_state(state)
        }

    def _taken_reports(self) -> list[tuple[int, Any]]:
        numbers = jax.device_get([numbers for _, numbers in self._reports])
        return [(step, tuple(map(float, each))) for (step, _), each in zip(self._reports, numbers)]

    def finished(self) -> History:
        """The history, when all steps are taken; decoder rows are then one long."""
        for part in parts_of(self._dictionary):
            part.rescale()
        reports = self._taken_reports()
        loss, error, active, dead = ([numbers[i] for _, numbers in reports] for i in range(4))
        return History([step for step, _ in reports], loss, error, active, [int(n) for n in dead], self._revived)

    def write(self) -> None:
        """Writes the checkpoint."""
        if self._file is None:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        about = {
            "settings": dataclasses.asdict(self._settings),
            "step": self.step,
            "reports": self._taken_reports(),
            "revived": self._revived,
            "random": self._random.bit_generator.state,
        }
        arrays = {path: np.asarray(variable[...]) for path, variable in self._variables().items()}
        with replaced_file(self._file) as place, place.open("wb") as file:
            np.savez(
                file, allow_pickle=False, silent=np.asarray(self._silent), about=np.array(json.dumps(about)), **arrays
            )

    def _read(self, path: Path) -> None:
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
            about = json.loads(str(arrays.pop("about")))
            silent, said = arrays.pop("silent"), about["settings"]
            step, reports, revived, random = (about[name] for name in ("step", "reports", "revived", "random"))
        except Exception as error:
            raise StoreError(f"{str(path)!r} does not hold a checkpoint ({type(error).__name__}: {error})") from error
        for name, value in dataclasses.asdict(self._settings).items():
            if said.get(name) != value:
                raise ValueError(
                    f"train: the checkpoint {str(path)!r} is of another run: {name} was {said.get(name)}, not {value}"
                )
        variables = self._variables()
        for name, variable in variables.items():
            if name not in arrays or arrays[name].shape != variable[...].shape:
                has = arrays[name].shape if name in arrays else "nothing"
                raise ValueError(
                    f"train: the checkpoint {str(path)!r} is of another dictionary: {name} has the shape "
                    f"{variable[...].shape}, the checkpoint has {has}"
                )
        for name, variable in variables.items():
            variable[...] = jnp.asarray(arrays[name])
        self.step, self._revived, self._silent = step, revived, jnp.asarray(silent)
        self._reports = [(number, tuple(numbers)) for number, numbers in reports]
        self._random.bit_generator.state = random


def _placed(x: jax.Array, mesh: jax.sharding.Mesh | None, axis: int | None, *, features: bool = False) -> jax.Array:
    """An array on the devices of a mesh, spread along one of its axes: rows along the first axis of the mesh."""
    if mesh is None:
        return x
    names = mesh.axis_names
    name = (names[1] if len(names) > 1 else None) if features else names[0]
    parts = [None] * x.ndim
    if axis is not None and name is not None:
        if x.shape[axis] % mesh.shape[name]:
            what = "features" if features else "rows of a batch"
            raise ValueError(f"train: {x.shape[axis]} {what} cannot be spread over {mesh.shape[name]} devices")
        parts[axis] = name
    return jax.device_put(x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*parts)))


@nnx.jit(static_argnums=(6, 7))
def _step(
    dictionary: Trained,
    optimizer: nnx.Optimizer,
    x: jax.Array,
    y: jax.Array,
    sparsity: jax.Array,
    silent: jax.Array,
    dead_after: int,
    ghosts: bool,
) -> Any:
    wrt = nnx.DiffState(0, nnx.Param)
    dead = silent >= dead_after if ghosts else None
    (loss, numbers), grads = nnx.value_and_grad(objective, argnums=wrt, has_aux=True)(dictionary, x, y, sparsity, dead)
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
    return loss, numbers, jnp.where(numbers["fired"], 0, silent + 1)
