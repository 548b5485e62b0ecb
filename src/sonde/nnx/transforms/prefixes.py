"""Values for parts of arguments: axes, shardings and what to differentiate, by filters on the Variables of a Module.

`StateAxes` and `StateSharding` replace a single value in `in_axes`, `out_shardings` and the like; `DiffState` is an
entry of `argnums`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import jax
from jax.experimental.layout import Format
from jax.sharding import PartitionSpec, Sharding

from sonde.nnx.modules.pytree import Pytree
from sonde.nnx.states.filters import Filter, PathIn, PathParts, to_predicate
from sonde.nnx.states.state import State, to_flat_state
from sonde.nnx.states.traversals import unflatten_mapping
from sonde.nnx.structure.definitions import Path
from sonde.nnx.structure.split_merge import GraphDef
from sonde.nnx.structure.value_kinds import NODE, kind_of
from sonde.nnx.transforms.options import Mode, mode, refuse_bound_method
from sonde.nnx.variable.variable import Variable, held_in

Prefix: TypeAlias = "int | type[Carry] | PartitionSpec | Sharding | Format | _Prefixes | None"
_Prefixes: TypeAlias = "ByFilter | TreeState | Pytree | Sequence[Prefix] | Mapping[Any, Prefix]"
"""A value for a whole argument or output (an axis, a spec, a sharding), values by filter, or containers of these."""


class Carry:
    """In `in_axes` and `out_axes` of `nnx.scan`, marks what is carried from one iteration to the next."""


class ByFilter:
    """Values by filter, in order; the first filter that matches a Variable is used."""

    _value_name = "value"

    def __init__(self, by_filter: Mapping[Filter, Any] | Iterable[tuple[Filter, Any]] | State[Any, Any], /):
        if isinstance(by_filter, State):
            pairs: list[tuple[Any, Any]] = [(PathIn(path), held_in(value)) for path, value in to_flat_state(by_filter)]
        else:
            pairs = list(by_filter.items() if isinstance(by_filter, Mapping) else by_filter)
        self.filters = tuple(f for f, _ in pairs)
        self.for_filters = tuple(value for _, value in pairs)
        self._predicates = tuple(map(to_predicate, self.filters))

    def items(self) -> Iterator[tuple[Filter, Any]]:
        """Pairs of filter and value."""
        return iter(zip(self.filters, self.for_filters))

    def map_prefix(self, path: Path, variable: Any) -> Any:
        """The value for a Variable at a path.

        Raises:
            ValueError: No filter matches.
        """
        for matches, value in zip(self._predicates, self.for_filters):
            if matches(path, variable):
                return value
        raise ValueError(
            f"No {self._value_name} found for path={path} ({type(variable).__name__}): no filter of {self} matches. "
            f"Add `...: {self._value_name}` for the rest."
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self.items())})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and tuple(self.items()) == tuple(other.items())  # pyright: ignore

    def __hash__(self) -> int:
        return hash((type(self), tuple(self.items())))


class StateAxes(ByFilter, Mapping[Filter, Any]):  # pyright: ignore[reportIncompatibleMethodOverride]
    """Axes by filter, for the Variables of a Module in `nnx.vmap`, `nnx.pmap` and `nnx.scan`; a mapping.

    Args:
        filter_axes: From filter to axis, in order; an axis is an int, None, or `nnx.Carry` in `nnx.scan`. Or a State
            with an axis in place of every Variable.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> model = nnx.Dict(w=nnx.Param(jnp.arange(3.0)), scale=nnx.BatchStat(jnp.array(2.0)))
        >>> axes = nnx.StateAxes({nnx.Param: 0, ...: None})
        >>> nnx.vmap(lambda m: m.w * m.scale, in_axes=axes)(model)
        Array([0., 2., 4.], dtype=float32)
    """

    _value_name = "axis"

    @property
    def axes(self) -> tuple[Any, ...]:
        """The axes, in the order of the filters."""
        return self.for_filters

    def __getitem__(self, key: Filter) -> Any:
        if key not in self.filters:
            raise KeyError(key)
        return self.for_filters[self.filters.index(key)]

    def __iter__(self) -> Iterator[Filter]:
        return iter(self.filters)

    def __len__(self) -> int:
        return len(self.filters)


class StateSharding(ByFilter):
    """Shardings by filter, for the Variables of a Module in `nnx.jit` and `nnx.shard_map`.

    Args:
        filter_sharding: From filter to sharding (or PartitionSpec), in order. Or a State with a sharding in place of
            every Variable.
    """

    _value_name = "sharding"

    @property
    def shardings(self) -> tuple[Any, ...]:
        """The shardings, in the order of the filters."""
        return self.for_filters


@jax.tree_util.register_pytree_with_keys_class
class TreeState:
    """One value per leaf of an object; the values are the children of this pytree.

    Attributes:
        graphdef: The structure.
        leaves: The values, in the order of states.
        paths: Their paths below the object.
    """

    def __init__(self, graphdef: GraphDef[Any], paths: tuple[PathParts, ...], leaves: list[Any]):
        self.graphdef = graphdef
        self.paths = paths
        self.leaves = leaves

    @property
    def state(self) -> State:
        """The values by path, as a State; the value itself for a lone Variable."""
        if self.paths == ((),):
            return self.leaves[0]
        return State(unflatten_mapping(dict(zip(self.paths, self.leaves))))

    def tree_flatten_with_keys(self) -> Any:
        """The leaves are the children."""
        keys = [jax.tree_util.GetAttrKey("/".join(map(str, path))) for path in self.paths]
        return list(zip(keys, self.leaves)), (self.graphdef, self.paths)

    @classmethod
    def tree_unflatten(cls, structure: tuple[GraphDef[Any], tuple[PathParts, ...]], leaves: Iterable[Any]) -> TreeState:
        """The inverse."""
        graphdef, paths = structure
        return cls(graphdef, paths, list(leaves))

    def __repr__(self) -> str:
        return f"TreeState({self.graphdef!r}, {self.leaves!r})"


@dataclasses.dataclass(frozen=True)
class DiffState:
    """An argument of `nnx.grad`, and which of its Variables to differentiate with respect to.

    Attributes:
        argnum: The position of the argument.
        filter: Which Variables.
    """

    argnum: int
    filter: Filter


def prepare(verb: str, f: Callable[..., Any], graph: bool | None, graph_updates: bool | None, **prefixes: Any) -> Mode:
    """The mode that a transform runs in, after checks of its function and of the options that are prefixes."""
    run_mode = mode(graph, graph_updates)
    for option, prefix in prefixes.items():
        _refuse_prefixes(verb, option, prefix, run_mode)
    refuse_bound_method(verb, f)
    return run_mode


def _refuse_prefixes(verb: str, what: str, prefix: Prefix | DiffState | Sequence[int | DiffState], mode: Mode) -> None:
    """Refuses an option that the mode does not allow.

    Args:
        verb: The transform, for messages.
        what: The option, for messages.
        prefix: Its value.
        mode: The mode.

    Raises:
        ValueError: It holds filters and graph updates are off, or nodes and they are on, or a Variable.
    """
    special_leaves = [x for x in jax.tree.leaves(prefix, is_leaf=_is_special) if _is_special(x)]
    for x in special_leaves:
        name = type(x).__name__
        if isinstance(x, (ByFilter, DiffState)) and not mode.updates:
            raise ValueError(
                f"nnx.{verb}: `{what}` cannot contain `{name}` objects when `graph=False` or `graph_updates=False`. "
                f"Use nnx.prefix(...), or pass graph=True and graph_updates=True."
            )
        if isinstance(x, Variable):
            raise ValueError(
                f"nnx.{verb}: `{what}` holds a {name}, a Variable, which cannot be a prefix. Use its value."
            )
        if kind_of(x) == NODE and mode.updates:
            raise ValueError(
                f"nnx.{verb}: `{what}` holds a {name}, an object that cannot be a prefix while graph updates are on. "
                f"Use filters: StateAxes, StateSharding or DiffState."
            )


def _is_special(x: object) -> bool:
    return isinstance(x, (ByFilter, DiffState, Variable)) or kind_of(x) == NODE
