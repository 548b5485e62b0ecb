"""Prefixes: one value (an axis, a sharding) for a whole argument, for each part of it, or for each filter.

`in_axes`, `out_axes`, `in_specs`, `in_shardings` and the like are prefixes: a single value, or containers of values
that go along with the arguments as far as they like, or filters on the Variables of a Module (`StateAxes`,
`StateSharding`), or what `nnx.prefix` made. `leaf_values` finds the value for every leaf that a walk met.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from jax.sharding import PartitionSpec

from sonde.nnx._kinds import ARRAY, CONTAINER, NODE, OTHER, VARIABLE, kind_of
from sonde.nnx._walk import REFERENCE, Path, count_leaves, flatten_once, show_path
from sonde.nnx.filters import Filter, PathIn, to_predicate
from sonde.nnx.pytree import Pytree
from sonde.nnx.states import State, to_flat_state
from sonde.nnx.trees import TreeNode
from sonde.nnx.variable import Variable

_UNSET: Any = object()


class Carry:
    """Marks, in `in_axes` and `out_axes` of `nnx.scan`, what is handed from one iteration to the next."""


class _ByFilter:
    """Values by filter, in order; the first filter that matches a Variable counts."""

    _value_name = "value"

    def __init__(self, by_filter: Mapping[Filter, Any] | Iterable[tuple[Filter, Any]] | State[Any, Any], /):
        if isinstance(by_filter, State):
            pairs: list[tuple[Any, Any]] = [(PathIn(path), raw_leaf(value)) for path, value in to_flat_state(by_filter)]
        else:
            pairs = list(by_filter.items() if isinstance(by_filter, Mapping) else by_filter)
        self.filters = tuple(f for f, _ in pairs)
        self._values = tuple(value for _, value in pairs)
        self._predicates = tuple(map(to_predicate, self.filters))

    def items(self) -> Iterator[tuple[Filter, Any]]:
        """Pairs of filter and value."""
        return iter(zip(self.filters, self._values))

    def value_for(self, path: Path, leaf: Any) -> Any:
        """The value for a Variable at a path.

        Raises:
            ValueError: no filter matches.
        """
        for matches, value in zip(self._predicates, self._values):
            if matches(path, leaf):
                return value
        raise ValueError(
            f"No {self._value_name} found for path={path} ({type(leaf).__name__}): no filter of {self} matches. Add "
            f"`...: {self._value_name}` for the rest."
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self.items())})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and tuple(self.items()) == tuple(other.items())  # pyright: ignore

    def __hash__(self) -> int:
        return hash((type(self), tuple(self.items())))


class StateAxes(_ByFilter):
    """Axes by filter, for the Variables of a Module in `nnx.vmap`, `nnx.pmap` and `nnx.scan`.

    Args:
        filter_axes: from filter to axis, in order; an axis is an int, None, or `nnx.Carry` in `nnx.scan`. Or a State
            with an axis in the place of every Variable.

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
        return self._values


class StateSharding(_ByFilter):
    """Shardings by filter, for the Variables of a Module in `nnx.jit` and `nnx.shard_map`.

    Args:
        filter_sharding: from filter to sharding (or PartitionSpec), in order. Or a State with a sharding in the place
            of every Variable.
    """

    _value_name = "sharding"

    @property
    def shardings(self) -> tuple[Any, ...]:
        """The shardings, in the order of the filters."""
        return self._values


@dataclasses.dataclass(frozen=True)
class DiffState:
    """An argument of `nnx.grad`, and which of its Variables to differentiate with respect to.

    Attributes:
        argnum: the position of the argument.
        filter: which Variables.
    """

    argnum: int
    filter: Filter


def raw_leaf(value: Any) -> Any:
    """What a Variable holds; other values as they are."""
    return value.get_raw_value() if isinstance(value, Variable) else value


def children_of(definition: Any) -> tuple[Sequence[Any], Sequence[Any]]:
    """Keys and definitions of the children of a node or container."""
    if definition[0] == NODE:
        return definition[3].data, definition[5]
    return definition[2], definition[4]


def places(definition: Any, prefix: Any = None, misfit: Any = None) -> Iterator[tuple[Path, Path, Any, int]]:
    """Every place of a leaf: its path, the path below the object it is in, its part of a prefix, its number.

    A shared leaf comes once for each of its paths.
    """
    numbering: dict[int, tuple[Any, int]] = {}
    counter = 0

    def number(d: Any) -> None:
        nonlocal counter
        if d[0] in (NODE, VARIABLE) and d[2] is not None:
            numbering[d[2]] = (d, counter)
        if d[0] in (VARIABLE, ARRAY):
            counter += 1
        elif d[0] in (NODE, CONTAINER):
            for child in children_of(d)[1]:
                number(child)

    number(definition)

    def visit(d: Any, p: Any, path: Path, below: Path | None, start: int, entered: tuple[int, ...]) -> Iterator[Any]:
        if d[0] == REFERENCE:
            d, start = numbering[d[1]]
        if below is None and d[0] in (NODE, VARIABLE):
            below = ()
        if d[0] in (VARIABLE, ARRAY):
            yield path, below or (), p, start
        elif d[0] in (NODE, CONTAINER) and id(d) not in entered:
            keys, children = children_of(d)
            for key, child, q in zip(keys, children, _parts(p, keys, path, misfit)):
                deeper = None if below is None else (*below, key)
                yield from visit(child, q, (*path, key), deeper, start, (*entered, id(d)))
                start += count_leaves(child)

    return visit(definition, prefix, (), None, 0, ())


def _parts(p: Any, keys: Sequence[Any], path: Path, misfit: Any) -> Sequence[Any]:
    """The parts of a prefix for the children of a node or container."""
    if isinstance(p, Pytree):
        names, parts = p._structure()[0].data, p._structure()[1]
    elif _is_container(p):
        names, parts, _ = flatten_once(p)
        if not path:  # the root is a call, whose arguments go by position
            keys = range(len(keys))
    else:
        return [p] * len(keys)
    if tuple(names) != tuple(keys):
        raise misfit(path, f"there are {len(keys)} entries ({_shown(keys)}), and not {len(names)} ({_shown(names)})")
    return parts


def _is_container(p: Any) -> bool:
    if p is None or isinstance(p, (TreeNode, PartitionSpec)):
        return False
    return kind_of(p) == CONTAINER


def _shown(keys: Sequence[Any]) -> str:
    return ", ".join(map(str, list(keys)[:6])) + (", ..." if len(keys) > 6 else "")


def alternatives(prefix: Any) -> list[Any]:
    """The different values that occur in a prefix."""
    found: list[Any] = []

    def look(p: Any) -> None:
        if isinstance(p, _ByFilter):
            values: Iterable[Any] = p._values
        elif isinstance(p, TreeNode):
            values = p.leaves
        elif isinstance(p, Variable):
            values = [p.get_raw_value()]
        elif isinstance(p, Pytree):
            values = p._structure()[1]
        elif _is_container(p):
            values = flatten_once(p)[1]
        else:
            if not any(p is q or (type(p) is type(q) and p == q) for q in found):
                found.append(p)
            return
        for value in values:
            look(value)

    look(prefix)
    return found


def leaf_values(prefix: Any, definition: Any, leaves: Sequence[Any], *, who: str, what: str) -> list[Any]:
    """The value of a prefix for every leaf.

    Args:
        prefix: the prefix; where it ends early, its value counts for all leaves below.
        definition: what the walk found; the root is a `Call`, so a tuple or list at the root of the prefix goes along
            with the arguments.
        leaves: the leaves.
        who: the transform, for messages.
        what: the option, for messages.

    Raises:
        ValueError: the prefix does not fit, or a shared Variable has two values.
    """

    def misfit(path: Path, found: str) -> ValueError:
        where = f" at {show_path(path)}" if path else ""
        return ValueError(f"The {what} of nnx.{who}, {prefix}, do not fit{where}: {found}.")

    values: list[Any] = [_UNSET] * len(leaves)
    first_paths: dict[int, Path] = {}
    by_path: dict[int, dict[Path, Any]] = {}
    for path, below, p, i in places(definition, prefix, misfit):
        if isinstance(p, _ByFilter):
            value = p.value_for(below, leaves[i])
        elif isinstance(p, TreeNode):
            if id(p) not in by_path:
                by_path[id(p)] = dict(zip(p.paths, p.leaves))
            value = by_path[id(p)].get(below, _UNSET)
        else:
            value = raw_leaf(p)
        if values[i] is _UNSET:
            values[i], first_paths[i] = value, path
        elif value is not _UNSET and values[i] != value:
            raise ValueError(
                f"Inconsistent aliasing detected: nnx.{who} was given a {type(leaves[i]).__name__} twice, with "
                f"different {what}:\n\n  - {show_path(first_paths[i])}: {values[i]}\n  - {show_path(path)}: {value}\n\n"
                f"A shared Variable is one value; give it one of them."
            )
    return [None if value is _UNSET else value for value in values]


def same_form(structure: Any, found: Any, name: str) -> str | None:
    """How an object that was walked differs from the argument of that name; None if it does not.

    Metadata of Variables and the order of keys in dicts do not count.
    """
    keys, children = children_of(structure.definition)
    before = children[list(keys).index(name)]
    (after,) = children_of(found.definition)[1]
    first: dict[int, int] = {}

    def differ(a: Any, b: Any, path: Path) -> str | None:
        place = show_path(path)
        if a[0] == REFERENCE or b[0] == REFERENCE:
            if a[0] != b[0] or first.get(a[1], a[1]) != b[1]:
                return f"{place} is shared with something else, or no longer"
            return None
        if a[0] != b[0] or (a[0] not in (ARRAY, OTHER) and a[1] is not b[1]):
            return f"{place} was {_kind_name(a)} and is {_kind_name(b)}"
        if a[0] == OTHER and a[1] is not b[1] and a[1] != b[1]:
            return f"{place} was {a[1]!r} and is {b[1]!r}"
        if a[0] in (NODE, VARIABLE) and a[2] is not None:
            first[a[2]] = b[2]
        if a[0] not in (NODE, CONTAINER):
            return None
        (keys_a, children_a), (keys_b, children_b) = children_of(a), children_of(b)
        if tuple(keys_a) != tuple(keys_b):
            return f"{place} had the entries {_shown(keys_a)} and has {_shown(keys_b)}"
        if a[0] == NODE and a[4] != b[4]:
            names = [n for n, x, y in zip(a[3].static, a[4], b[4]) if x is not y and x != y]
            return f"the static attributes {', '.join(map(str, names))} of {place} changed"
        for key, x, y in zip(keys_a, children_a, children_b):
            if difference := differ(x, y, (*path, key)):
                return difference
        return None

    return differ(before, after, (name,))


def _kind_name(d: Any) -> str:
    if d[0] in (NODE, CONTAINER, VARIABLE):
        return f"a {d[1].__name__}"
    return "an array" if d[0] == ARRAY else repr(d[1])
