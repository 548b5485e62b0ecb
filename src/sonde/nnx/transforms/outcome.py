"""The static description of what a transformed function returned and changed, used by every transform.

Arrays leave a pure function in lists, with an `Outcome`, a pytree node without leaves, that describes them: leaves of
edits (see `structure_changes`), then leaves of the output, then new values of Variables. There is one list for every
value of an option (`out_axes`, `out_specs`), so that a tuple of options tells JAX's transform about each list, before
the output is known.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax

from sonde._jax import trace_level
from sonde.nnx.modules.pytree import Pytree, _wrong_level
from sonde.nnx.structure import epoch
from sonde.nnx.structure.build import build
from sonde.nnx.structure.definitions import has_references
from sonde.nnx.structure.split_merge import GraphDef
from sonde.nnx.transforms.structure_changes import new_data, replay
from sonde.nnx.variable.array_references import referring
from sonde.nnx.variable.variable import Variable, _set_metadata, _set_value


@jax.tree_util.register_static
@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Outcome:
    """Describes the arrays that left a pure function.

    Attributes:
        definition: How to build the output; None if it is plain and was returned separately.
        edits: New definitions of nodes of the arguments.
        lists_of_leaves: For each leaf of the edits and of the output, which list it is in.
        changed: The leaves of the arguments that were given a new value or new metadata.
        lists_of_changes: For each of them, which list it is in.
        metadata: For each of them, the new metadata, or None if it stayed.
        references: Which leaves of the edits and of the output were array references.
        nothing: Whether there is nothing to do: the output was returned separately, and nothing changed.
        values_only: Whether there is nothing to do but to give Variables new values.
        n_edited: How many leaves the edits have.
        refers: Whether the edits or the output refer to objects of the arguments.
    """

    definition: GraphDef[Any] | None
    edits: tuple[GraphDef[Any], ...]
    lists_of_leaves: tuple[int, ...]
    changed: tuple[int, ...]
    lists_of_changes: tuple[int, ...]
    metadata: tuple[Any, ...]
    references: tuple[int, ...] = ()
    values_only: bool = dataclasses.field(init=False)
    nothing: bool = dataclasses.field(init=False)
    n_edited: int = dataclasses.field(init=False)
    refers: bool = dataclasses.field(init=False)
    _key: Hashable = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        definition, edits = self.definition, self.edits
        self.values_only = definition is None and not edits and all(m is None for m in self.metadata)
        self.nothing = self.values_only and not self.changed
        self.n_edited = sum(edit.num_leaves for edit in edits)
        self.refers = bool(edits) or (definition is not None and has_references(definition.definition))
        # Not the metadata: they may hold what cannot be hashed.
        self._key = (definition, edits, self.lists_of_leaves, self.changed, self.lists_of_changes, self.references)

    def split(self, lists: Sequence[Sequence[Any]]) -> tuple[list[Any], list[Any]]:
        """Takes the lists apart: leaves of the edits and of the output, and new values of Variables."""
        streams = [iter(arrays) for arrays in lists]
        built = [next(streams[n]) for n in self.lists_of_leaves]
        return built, [next(streams[n]) for n in self.lists_of_changes]

    def join(self, built: Sequence[Any], news: Sequence[Any], n_lists: int) -> tuple[list[Any], ...]:
        """The inverse of `split`."""
        lists: tuple[list[Any], ...] = tuple([] for _ in range(n_lists))
        for value, n in zip([*built, *news], [*self.lists_of_leaves, *self.lists_of_changes]):
            lists[n].append(value)
        return lists

    def with_changes(self, changed: Sequence[int], metadata: Mapping[int, Any]) -> Outcome:
        """The same with other changed leaves, whose values are in the first list."""
        new_metadata = tuple(metadata.get(i) for i in changed)
        in_first_list = (0,) * len(changed)
        return dataclasses.replace(self, changed=tuple(changed), lists_of_changes=in_first_list, metadata=new_metadata)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Outcome) and self._key == other._key and self.metadata == other.metadata
        )

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"Outcome({self.definition!r}, edits={len(self.edits)}, changed={self.changed})"


PureResult = tuple[tuple[list[Any], ...], Outcome]  # lists of arrays, and what they are


def settle(
    result: PureResult, leaves: Sequence[Any], objects: Callable[[], Mapping[int, Any]], *, output_only: bool = False
):
    """Applies an outcome to the caller's objects, and returns the output.

    Args:
        result: What the pure function returned.
        leaves: The leaves of the caller's arguments.
        objects: Returns the caller's objects by index; called only if the outcome refers to them.
        output_only: Leave the caller's objects alone.

    Raises:
        TraceContextError: An object may not be changed here. Nothing is changed then.
    """
    lists, outcome = result
    built, news = outcome.split(lists)
    # JAX returned the values of references; the caller gets new references to them.
    for i in outcome.references:
        built[i] = referring(built[i])
    objects_by_index = dict(objects()) if outcome.refers else {}
    arrays = iter(built)
    if output_only:
        for edit in outcome.edits:
            new_data(edit.definition, arrays, objects_by_index)  # the output may refer to objects that are made here
    else:
        variables = [leaves[i] for i in outcome.changed]
        # All checks before the first change: an error leaves the caller's objects as they were.
        _check_levels(variables, [objects_by_index[edit.definition[2]] for edit in outcome.edits])
        for edit in outcome.edits:
            replay(edit.definition, arrays, objects_by_index)
        _write(variables, news, outcome.metadata)
    if outcome.definition is None:
        return None
    return build(outcome.definition.definition, arrays, known=objects_by_index).values[0]


def _check_levels(variables: Sequence[Variable[Any]], nodes: Sequence[Pytree]) -> None:
    for variable in variables:
        variable._check_level()
    for node in nodes:
        if node._level is not trace_level():
            raise _wrong_level(node)


def write(variables: Sequence[Variable[Any]], values: Sequence[Any]) -> None:
    """Gives Variables new values; changes none if one of them may not be changed here."""
    _check_levels(variables, ())
    _write(variables, values, [None] * len(variables))


def _write(variables: Sequence[Variable[Any]], values: Sequence[Any], metadata: Sequence[Any]) -> None:
    for variable, value, new_metadata in zip(variables, values, metadata):
        _set_value(variable, value)
        if new_metadata is not None:
            _set_metadata(variable, new_metadata)
            epoch.bump()
