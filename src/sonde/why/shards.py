"""`shard_map` on the way back: which shard, and across collectives to the shard that a value came from.

Inside a `shard_map` each value of a scene is a global array with one more axis in front, over the shards that hold
different numbers; nothing is gathered while programs run. A `Shard` says on which of them the walk is.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from sonde import _jax
from sonde.core import with_capture_state
from sonde.programs.flat import Equation, flatten
from sonde.programs.running import compiled
from sonde.why.reads import Index
from sonde.why.walk import ENTER, Around, Birth, Position, Scene, Step, Walk

_SUMS = frozenset({"psum", "psum2", "psum_invariant", "pmax", "pmin", "unreduced_psum"})
_GATHERS = frozenset({"all_gather", "all_gather_invariant", "all_gather_reduced"})
_OTHERS = frozenset({"all_to_all", "reduce_scatter", "unreduced_reduce_scatter", "ragged_all_to_all", "pgather"})


@dataclasses.dataclass(frozen=True)
class Shard:
    """A position on a mesh.

    Attributes:
        mesh: The mesh.
        axes: The axes over which the program is divided.
        checked: Whether types say over which axes a value varies; if not, it may vary over all.
        position: The position along each of the axes.
    """

    mesh: Any
    axes: tuple[str, ...]
    checked: bool
    position: tuple[int, ...]

    def varying(self, aval: Any) -> tuple[str, ...]:
        """The axes over which a value of a type varies."""
        varies = _jax.varying_axes_of_type(aval)
        return tuple(axis for axis in self.axes if not self.checked or axis in varies)

    def local(self, value: np.ndarray, aval: Any) -> np.ndarray:
        """The part of a value that is on the shard; constants are the same everywhere and have no axis for it."""
        if value.ndim == len(aval.shape):
            return value
        mine = dict(zip(self.axes, self.position))
        row = 0
        for axis in self.varying(aval):
            row = row * self.mesh.shape[axis] + mine[axis]
        return value[row]

    def at(self, **positions: int) -> Shard:
        """Another shard."""
        position = tuple(positions.get(axis, now) for axis, now in zip(self.axes, self.position))
        return dataclasses.replace(self, position=position)

    def group(self, axes: Sequence[str]) -> Iterator[Shard]:
        """The shards that differ along some axes only."""
        mine = [axis for axis in self.axes if axis in axes]
        for positions in itertools.product(*[range(self.mesh.shape[axis]) for axis in mine]):
            yield self.at(**dict(zip(mine, positions)))

    def run(self, program: Callable[..., list[Any]], values: Sequence[Any], types: Any) -> list[Any]:
        """Runs a function of flat values on all shards."""
        given, returned = types

        def on_shard(*stacked: Any) -> list[Any]:
            return [x[None] for x in program(*[x[0] if is_in else x for x, is_in in zip(stacked, is_stacked)])]

        # Numbers that the search itself passes in are the same everywhere.
        is_stacked = [np.ndim(x) > len(aval.shape) for x, aval in zip(values, given)]
        specs = [self._spec(aval) if is_in else PartitionSpec() for aval, is_in in zip(given, is_stacked)]
        mapped = jax.shard_map(
            on_shard,
            mesh=self.mesh,
            in_specs=tuple(specs),
            out_specs=[self._spec(aval) for aval in returned],
            axis_names=set(self.axes),
            check_vma=self.checked,
        )
        with with_capture_state(None):
            return compiled(mapped)(*values)

    def _spec(self, aval: Any) -> PartitionSpec:
        axes = self.varying(aval)
        return PartitionSpec(axes if axes else None)


def enter_shard_map(walk: Walk, scene: Scene, number: int, output: int, index: Index) -> Position | None:
    """The way back into a `shard_map`."""
    del walk
    if scene.shard is not None:  # one inside another
        return None
    equation = scene.level.equations[number]
    base: Any = scene.entered.get(number)
    if base is None:
        base = _divided(scene, number, equation)
        if base is None:
            return None
        scene.entered[number] = base
    shape = scene.host(equation.outputs[output]).shape
    positions, local = _to_shard(index, shape, equation.params["out_specs"][output], base.shard)
    inside = base.at(base.shard.at(**positions))
    return Position(inside, inside.level.outputs[output], local)


def _leave(scene: Scene, slot: int, index: Index) -> Position:
    assert scene.outer is not None
    outer, number = scene.outer
    equation = outer.level.equations[number]
    shape = outer.host(equation.inputs[slot]).shape
    return Position(
        outer, equation.inputs[slot], _from_shard(index, shape, equation.params["in_specs"][slot], scene.shard)
    )


def _divided(scene: Scene, number: int, equation: Equation) -> Scene | None:
    """The scene inside a `shard_map`, at the first shard."""
    params = equation.params
    operands = scene.values.many(equation.inputs)
    mesh = _concrete(params["mesh"], operands)
    if mesh is None:
        return None
    axes = tuple(axis for axis in mesh.axis_names if axis in params["newly_manual_axes"])
    shard = Shard(mesh, axes, bool(params["check_vma"]), (0,) * len(axes))
    level = flatten(params["jaxpr"], equation)
    types = level.types[: level.n_inputs]
    stack = jax.shard_map(
        lambda *shards: [x[None] for x in shards],
        mesh=mesh,
        in_specs=tuple(params["in_specs"]),
        out_specs=[shard._spec(aval) for aval in types],
        axis_names=set(axes),
        check_vma=shard.checked,
    )
    with with_capture_state(None):
        stacked = jax.jit(stack)(*operands) if operands else []
    return scene.inside(level, stacked, number, _leave, Around("shard_map", 0), run=shard.run, shard=shard)


def _concrete(mesh: Any, operands: Sequence[Any]) -> Any:
    """A mesh with devices: the one of the equation, or of its operands, or around."""
    if isinstance(mesh, jax.sharding.Mesh):
        return mesh
    meshes = [getattr(getattr(x, "sharding", None), "mesh", None) for x in operands]
    return next((m for m in [*meshes, _jax.ambient_mesh()] if isinstance(m, jax.sharding.Mesh) and not m.empty), None)


def _names(part: Any) -> tuple[str, ...]:
    return () if part is None else (part,) if isinstance(part, str) else tuple(part)


def _parts(spec: Any, n: int, shard: Shard) -> list[tuple[str, ...]]:
    parts = [*spec, *[None] * (n - len(tuple(spec)))]
    return [tuple(axis for axis in _names(part) if axis in shard.axes) for part in parts]


def _to_shard(index: Index, shape: tuple[int, ...], spec: Any, shard: Shard) -> tuple[dict[str, int], Index]:
    """The shard that holds an element of a global array, and which of its elements it is."""
    positions: dict[str, int] = {}
    local = []
    for i, n, names in zip(index, shape, _parts(spec, len(shape), shard)):
        sizes = [shard.mesh.shape[axis] for axis in names]
        mine = n // int(np.prod(sizes, dtype=int))
        positions.update(zip(names, map(int, np.unravel_index(i // mine, sizes) if sizes else ())))
        local.append(i % mine)
    return positions, tuple(local)


def _from_shard(index: Index, shape: tuple[int, ...], spec: Any, shard: Shard) -> Index:
    """The element of a global array that an element on a shard is."""
    mine = dict(zip(shard.axes, shard.position))
    whole = []
    for i, n, names in zip(index, shape, _parts(spec, len(shape), shard)):
        row, parts = 0, 1
        for axis in names:
            row, parts = row * shard.mesh.shape[axis] + mine[axis], parts * shard.mesh.shape[axis]
        whole.append(row * (n // parts) + i)
    return tuple(whole)


# ---------------------------------------------------------------------------------------------------------------------
# Collectives
# ---------------------------------------------------------------------------------------------------------------------


def enter_collective(walk: Walk, scene: Scene, number: int, output: int, index: Index) -> Position | Birth | None:
    """The way back to the shard that sent what a collective operation received."""
    if scene.shard is None:
        return None
    equation = scene.level.equations[number]
    params, name = equation.params, equation.name
    axes = _names(params.get("axes", params.get("axis_name")))
    slot = equation.inputs[output if name in _SUMS else 0]
    shard: Shard = scene.shard
    if name == "ppermute":
        (axis,) = axes
        mine = dict(zip(shard.axes, shard.position))[axis]
        sources = [source for source, target in params["perm"] if target == mine]
        return Position(scene.at(shard.at(**{axis: sources[0]})), slot, index) if sources else None
    if name in _GATHERS and len(axes) == 1 and params.get("axis_index_groups") is None:
        dim = params["all_gather_dimension"]
        size = 1 if not params["tiled"] else scene.host(slot).shape[dim]
        source, left = divmod(index[dim], size)
        local = (*index[:dim], *((left,) if params["tiled"] else ()), *index[dim + 1 :])
        return Position(scene.at(shard.at(**{axes[0]: source})), slot, local)
    severity = int(walk.severity(scene.host(equation.outputs[output])[index]))
    lesser: list[Birth] = []
    for other in shard.group(axes):
        there = scene.at(other)
        found = walk.severity(there.host(slot))
        whole = found[index] if name in _SUMS else found
        if np.any(whole == severity):
            first = index if name in _SUMS else _first(found == severity)
            return Position(there, slot, first)
        if np.any(whole) and len(lesser) < 2:
            lesser.append(walk.back(there, slot, index if name in _SUMS else _first(found > 0)))
    step = Step(scene, equation.outputs[output], index, severity)
    return Birth(step, (), tuple(lesser))


def _first(mask: np.ndarray) -> Index:
    return tuple(map(int, np.unravel_index(int(np.argmax(mask)), mask.shape))) if mask.ndim else ()


ENTER["shard_map"] = enter_shard_map
for _name in (*_SUMS, *_GATHERS, *_OTHERS, "ppermute"):
    ENTER[_name] = enter_collective
