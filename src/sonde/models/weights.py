"""Filling a model with the tensors of a checkpoint: everything is checked before anything is read."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jax.sharding import Mesh
from jax.typing import DTypeLike

from sonde import nnx
from sonde.errors import ModelFileError
from sonde.models.architectures import Architecture
from sonde.models.clip import TowersConfig
from sonde.models.config import Config
from sonde.models.files import Tensor, Tensors
from sonde.models.name_tables import TensorRow, expand
from sonde.models.sharding import place, sharding_of
from sonde.models.stack import Layers
from sonde.models.tokens import Tokenizer

_SHOWN = 8
_OLD = {"gamma": "weight", "beta": "bias"}


@dataclasses.dataclass(frozen=True)
class TensorSource:
    """The source of a parameter's values: a tensor, and which of its parts."""

    tensor: Tensor
    row: TensorRow
    part: int

    def view(self) -> np.ndarray:
        """The values, as a view of the file if they are stored in that form."""
        return self.row.split(self.tensor.read())[self.part]


def number_of_layers(config: Config | TowersConfig) -> int:
    """The number of layers that a table covers; for two towers, that of the taller one."""
    return max(config.image.layers, config.text.layers) if isinstance(config, TowersConfig) else config.layers


def parameters_of(model: nnx.Module) -> dict[str, Any]:
    """The parameters of a model by path."""
    return {"/".join(map(str, path)): leaf for path, leaf in nnx.to_flat_state(nnx.state(model, nnx.Param))}


def fill(
    model: nnx.Module,
    architecture: Architecture,
    tensors: Tensors,
    *,
    mesh: Mesh | None,
    where: str,
) -> None:
    """Fills a model that has shapes only.

    Args:
        model: The model; its parameters are `jax.ShapeDtypeStruct`.
        architecture: The architecture whose table of names is used.
        tensors: The tensors of the checkpoint.
        mesh: The devices; None for the default device.
        where: The checkpoint, for messages.

    Raises:
        ModelFileError: Tensors are missing, surplus or of the wrong shape. The model is unchanged.
    """
    config: Any = model.config  # pyright: ignore[reportAttributeAccessIssue]
    parameters = parameters_of(model)
    rows = list(expand(architecture.rows(config), number_of_layers(config)))
    tensors = _under_todays_names(tensors, architecture.prefix, rows)
    sources = _sources(rows, tensors)
    plan = {path: _plan(path, leaf, sources) for path, leaf in parameters.items()}
    _check(plan, parameters, rows, tensors, where)
    finished = _release_after_last_use([source for layers in plan.values() for source in layers])
    # The largest first: when most of the model is loaded, converting a tensor then needs little extra memory.
    for path in sorted(parameters, key=lambda p: -_size(parameters[p])):
        leaf, layers = parameters[path], plan[path]
        sharding = sharding_of(path, leaf.shape, mesh)
        value = place(_joined(layers, leaf, finished), leaf.dtype, sharding)
        if len(layers) == 1:
            finished(layers[0])
        leaf.set_raw_value(value)
        del value
    nnx.update(model, nnx.from_flat_state([(_parts(path), leaf) for path, leaf in parameters.items()]))


def _release_after_last_use(sources: Sequence[TensorSource]) -> Callable[[TensorSource], None]:
    """A function to call after a source was copied; releases the pages of its tensor after the last one."""
    uses = Counter(source.tensor.name for source in sources)

    def finished(source: TensorSource) -> None:
        uses[source.tensor.name] -= 1
        if not uses[source.tensor.name]:
            source.tensor.release()

    return finished


def _joined(found: Sequence[TensorSource], leaf: Any, finished: Callable[[TensorSource], None]) -> np.ndarray:
    """The numbers of a parameter; those of scanned layers are put together here."""
    if len(found) == 1:
        view = found[0].view()
        return view if view.shape == leaf.shape else view[None]
    whole = np.empty(leaf.shape, leaf.dtype)
    for layer, source in enumerate(found):
        whole[layer] = source.view()
        finished(source)
    return whole


def _parts(path: str) -> tuple[Any, ...]:
    return tuple(int(part) if part.isdigit() else part for part in path.split("/"))


def _size(leaf: Any) -> int:
    return int(np.prod(leaf.shape, dtype=np.int64))


def _under_todays_names(tensors: Tensors, prefix: str, rows: Iterable[TensorRow]) -> Tensors:
    """The tensors under the names of the table.

    Some checkpoints leave out the common prefix; the first BERTs call scale and bias of norms gamma and beta.
    """
    whole = {row.theirs for row in rows}
    has_prefix = not prefix or any(name.startswith(prefix) for name in tensors)

    def today(name: str) -> str:
        stem, _, last = name.rpartition(".")
        if last in _OLD:
            name = f"{stem}.{_OLD[last]}"
        return name if has_prefix or name in whole else prefix + name

    return {today(name): tensor for name, tensor in tensors.items()}


def _sources(rows: Iterable[TensorRow], tensors: Tensors) -> dict[str, TensorSource]:
    return {
        path: TensorSource(tensors[row.theirs], row, part)
        for row in rows
        if row.theirs in tensors
        for part, path in enumerate(row.ours)
    }


def _plan(path: str, leaf: Any, sources: Mapping[str, TensorSource]) -> list[TensorSource]:
    """Where the values of a parameter come from: one tensor, or for scanned layers one per layer."""
    if path in sources:
        return [sources[path]]
    before, name, after = path.partition("blocks/")
    if not name:
        return []
    layers = [sources.get(f"{before}blocks/{layer}/{after}") for layer in range(leaf.shape[0] if leaf.shape else 0)]
    return [source for source in layers if source is not None]


def _check(
    plan: Mapping[str, Sequence[TensorSource]],
    wanted: Mapping[str, Any],
    rows: Sequence[TensorRow],
    tensors: Tensors,
    where: str,
) -> None:
    """Raises a ModelFileError that names every tensor that does not fit."""
    named = {row.theirs for row in rows}
    missing = sorted(row.theirs for row in rows if row.theirs not in tensors and not row.optional)
    surplus = sorted(name for name in tensors if name not in named)
    misshapen = []
    for row in rows:
        expected = _expected(row, wanted) if row.theirs in tensors else None
        if expected is not None and tensors[row.theirs].shape != expected:
            shape = list(tensors[row.theirs].shape)
            misshapen.append(f"{row.theirs} is {shape}, should be {list(expected)}")
    filled = {path for path, layers in plan.items() if layers}
    problems = [
        f"{title}: {_listed(names)}"
        for title, names in (("missing", missing), ("surplus", surplus), ("misshapen", sorted(misshapen)))
        if names
    ]
    if not problems and filled != set(wanted):
        problems = [f"parameters without a tensor: {_listed(sorted(set(wanted) - filled))}"]
    if problems:
        raise ModelFileError(f"{where} does not fit its config. " + "; ".join(problems) + ".")


def _expected(row: TensorRow, wanted: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The shape that a tensor must have; None if it is not a parameter of the model."""
    shapes = [shape for path in row.ours if (shape := _shape(path, wanted)) is not None]
    if not shapes or len(shapes) < len(row.ours):
        return None
    return row.join(*(np.broadcast_to(np.int8(0), shape) for shape in shapes)).shape


def _shape(path: str, wanted: Mapping[str, Any]) -> tuple[int, ...] | None:
    if path in wanted:
        return wanted[path].shape
    before, _, after = path.partition("blocks/")
    scanned = wanted.get(f"{before}blocks/{after.partition('/')[2]}")
    return None if scanned is None else scanned.shape[1:]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def abstract(
    architecture: Architecture,
    config: Config | TowersConfig,
    *,
    layers: Layers,
    dtype: DTypeLike,
    tokenizer: Tokenizer | None,
) -> nnx.Module:
    """A model that has shapes only."""

    def make() -> nnx.Module:
        build: Any = architecture.module
        return build(config, layers=layers, rngs=nnx.Rngs(0), dtype=dtype, tokenizer=tokenizer)

    return nnx.eval_shape(make)
