"""One value (an axis, a sharding) for every leaf, from a prefix of the arguments or of the output.

`in_axes`, `out_axes`, `in_specs`, `in_shardings` and the like are prefixes: a single value, or containers of values
that mirror the top levels of the arguments, or filters on the Variables of a Module (`StateAxes`, `StateSharding`), or
what `nnx.prefix` returned. `leaf_values` finds the value for every leaf that a walk visited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import PartitionSpec

from sonde._key_paths import key_of
from sonde.nnx.modules.pytree import Pytree
from sonde.nnx.states.filters import PathParts
from sonde.nnx.states.traversals import show_path
from sonde.nnx.structure.definitions import REFERENCE, Definition, Path, children_of, count_leaves, flatten_once
from sonde.nnx.structure.mapping import map as map_leaves
from sonde.nnx.structure.mode import resolve
from sonde.nnx.structure.split_merge import GraphDef
from sonde.nnx.structure.value_kinds import ARRAY, CONTAINER, NODE, OTHER, VARIABLE, is_object, kind_of
from sonde.nnx.structure.walk import walk
from sonde.nnx.transforms.prefixes import ByFilter, Prefix, TreeState
from sonde.nnx.variable.variable import Variable, held_in

_UNSET: Any = object()


def _no_prefix(path: Path, text: str) -> Exception:
    raise AssertionError(f"there is no prefix that could not fit at {show_path(path)}: {text}")


class Part(NamedTuple):
    """The part of a prefix that belongs to an object in the arguments.

    Attributes:
        prefix: The part of the prefix.
        path: The path of the object.
        below: Its path below the outermost object it is in.
    """

    prefix: Any
    path: Path
    below: Path


Numbering = Mapping[int, tuple[Definition, int]]
Misfit = Callable[[Path, str], Exception]  # makes the error for a prefix that does not fit at a path


def numbering(definition: Definition) -> Numbering:
    """By the index of an object: its definition, and the number of its first leaf."""
    by_index: dict[int, tuple[Any, int]] = {}
    _number(definition, 0, by_index)
    return by_index


def _number(d: Definition, counter: int, by_index: dict[int, tuple[Any, int]]) -> int:
    if d[0] in (NODE, VARIABLE) and d[2] is not None:
        by_index[d[2]] = (d, counter)
    if d[0] in (VARIABLE, ARRAY):
        return counter + 1
    if d[0] in (NODE, CONTAINER):
        for child in children_of(d)[1]:
            counter = _number(child, counter, by_index)
    return counter


def each_leaf(
    definition: Definition,
    prefix: Prefix = None,
    misfit: Misfit = _no_prefix,
    *,
    given: Numbering | None = None,
    at: Part | None = None,
    parts: dict[int, Part] | None = None,
) -> Iterator[tuple[Path, Path, Any, int]]:
    """Yields every occurrence of a leaf: its path, the path below its object, its part of a prefix, its number.

    A shared leaf is yielded once for each of its paths.

    Args:
        definition: What a walk found.
        prefix: The prefix.
        misfit: Makes an error from a path and a text.
        given: Objects that were visited in an earlier walk; their leaves have the numbers -1, -2 and so on.
        at: The path of `definition`, and its part of the prefix, if it is not the root.
        parts: A dict that gets the part of every node, by index.
    """
    numbers = numbering(definition)

    def visit(
        d: Definition, p: Prefix, path: Path, below: Path | None, start: int, step: int, entered: Any
    ) -> Iterator[Any]:
        if d[0] == REFERENCE:
            if d[1] in numbers:
                d, start = numbers[d[1]]
                step = 1
            elif given and d[1] in given:
                d, first = given[d[1]]
                # Counted downwards from -1, so that they cannot be taken for leaves of this walk.
                start, step = -1 - first, -1
            else:
                return  # a new object that another walk visited first
        # Filters count paths from the outermost object, not from the arguments.
        if below is None and d[0] in (NODE, VARIABLE):
            below = ()
        if d[0] in (VARIABLE, ARRAY):
            yield path, below or (), p, start
        elif d[0] in (NODE, CONTAINER) and id(d) not in entered:
            if parts is not None and d[0] == NODE:
                parts.setdefault(d[2], Part(p, path, below or ()))
            keys, children = children_of(d)
            for key, child, q in zip(keys, children, _parts(p, keys, path, misfit)):
                deeper = None if below is None else (*below, key)
                yield from visit(child, q, (*path, key), deeper, start, step, (*entered, id(d)))
                start += step * count_leaves(child)

    if at is not None:
        return visit(definition, at.prefix, at.path, at.below, 0, 1, ())
    return visit(definition, prefix, (), None, 0, 1, ())


def _parts(p: Prefix, keys: Sequence[Any], path: Path, misfit: Misfit) -> Sequence[Any]:
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
        raise misfit(path, f"there are {len(keys)} entries ({_shown(keys)}), not {len(names)} ({_shown(names)})")
    return parts


def _is_container(p: Prefix) -> bool:
    if p is None or isinstance(p, (TreeState, PartitionSpec)):
        return False
    return kind_of(p) == CONTAINER


def _shown(keys: Sequence[Any]) -> str:
    return ", ".join(map(str, list(keys)[:6])) + (", ..." if len(keys) > 6 else "")


def alternatives(prefix: Prefix) -> list[Any]:
    """The different values that occur in a prefix."""
    values_seen: list[Any] = []

    def look(p: Prefix) -> None:
        if isinstance(p, ByFilter):
            values: Iterable[Any] = p.for_filters
        elif isinstance(p, TreeState):
            values = p.leaves
        elif isinstance(p, Variable):
            values = [p.get_raw_value()]
        elif isinstance(p, Pytree):
            values = p._structure()[1]
        elif _is_container(p):
            values = flatten_once(p)[1]
        else:
            if not any(p is q or (type(p) is type(q) and p == q) for q in values_seen):
                values_seen.append(p)
            return
        for value in values:
            look(value)

    look(prefix)
    return values_seen


class Spread:
    """Spreads a prefix over leaves.

    Args:
        prefix: Where it ends early, its value applies to all leaves below.
        verb: The transform, for messages.
        what: The option, for messages.
    """

    def __init__(self, prefix: Prefix, *, verb: str, what: str):
        self.prefix = prefix
        self._verb = verb
        self._what = what

    def over(
        self,
        definition: Definition,
        leaves: Sequence[Any],
        *,
        given: Numbering | None = None,
        given_values: Sequence[Any] = (),
        at: Part | None = None,
        parts: dict[int, Part] | None = None,
    ) -> list[Any]:
        """The value for every leaf.

        Args:
            definition: What the walk found; the root is a `NamedValues`, so a tuple or list at the root of the prefix
                mirrors the arguments.
            leaves: The leaves.
            given: Objects of the arguments, if `definition` refers to them.
            given_values: The values of their leaves.
            at: The path of `definition`, if it is a part of the arguments.
            parts: A dict that gets the part of every node, by index.

        Raises:
            ValueError: The prefix does not fit, or a shared Variable has two values.
        """
        values: list[Any] = [_UNSET] * len(leaves)
        first_paths: dict[int, Path] = {}
        by_path: dict[int, dict[Path, Any]] = {}
        for path, below, p, i in each_leaf(definition, self.prefix, self._misfit, given=given, at=at, parts=parts):
            leaf = leaves[i] if i >= 0 else None
            if isinstance(p, ByFilter):
                if leaf is None:
                    continue  # the Variable has a value as a part of the arguments
                value = p.map_prefix(below, leaf)
            elif isinstance(p, TreeState):
                # Made once for each prefix object: a model has thousands of leaves.
                if id(p) not in by_path:
                    by_path[id(p)] = dict(zip(p.paths, p.leaves))
                value = by_path[id(p)].get(below, _UNSET)
            else:
                value = held_in(p)
            before = values[i] if i >= 0 else given_values[-1 - i]
            if before is _UNSET:
                values[i], first_paths[i] = value, path
            elif value is not _UNSET and before is not value and before != value:
                raise self._inconsistent(leaf, first_paths.get(i), before, path, value)
        return [None if value is _UNSET else value for value in values]

    def _misfit(self, path: Path, found: str) -> ValueError:
        where = f" at {show_path(path)}" if path else ""
        return ValueError(f"The {self._what} of nnx.{self._verb}, {self.prefix}, do not fit{where}: {found}.")

    def _inconsistent(self, leaf: object, first: Path | None, before: object, path: Path, value: object) -> ValueError:
        kind_name = "Variable" if leaf is None else type(leaf).__name__
        where = "the arguments" if first is None else show_path(first)
        return ValueError(
            f"Inconsistent aliasing detected: nnx.{self._verb} was given a {kind_name} twice, with different values "
            f"for {self._what}:\n\n  - {where}: {before}\n  - {show_path(path)}: {value}\n\n"
            f"A shared Variable has one value: use the same one for both."
        )


def leaf_values(prefix: Prefix, definition: Definition, leaves: Sequence[Any], *, verb: str, what: str) -> list[Any]:
    """The value of a prefix for every leaf; see `Spread`."""
    return Spread(prefix, verb=verb, what=what).over(definition, leaves)


def prefix(
    node: object, filter_map: Mapping[Any, Any] | Callable[[PathParts, Any], Any], /, *, graph: bool | None = None
) -> Any:
    """One value per leaf of a model, for `in_axes`, `out_axes` and the like.

    Args:
        node: A Module, any other node, or a pytree of them. If several arguments of a transform share references,
            pass them together, in the order of the arguments.
        filter_map: Values by filter, where the first filter that matches is used; or a function of (path, leaf).
        graph: True allows shared references, False demands a tree. None: the current mode.

    Raises:
        ValueError: A leaf is matched by no filter.

    Example:
        >>> from sonde import nnx
        >>> nnx.prefix({"a": nnx.Param(1.0), "b": nnx.BatchStat(2.0)}, {nnx.Param: 0, ...: None}, graph=False)
        {'a': 0, 'b': None}
    """
    value_of = filter_map if callable(filter_map) else ByFilter(filter_map).map_prefix
    if not resolve(graph):
        return map_leaves(value_of, node, graph=False, recreate_variables=False)

    def convert(path: tuple[Any, ...], value: object) -> Any:
        prefix = tuple(map(key_of, path))
        if not is_object(value):
            return value_of(prefix, value)
        # one value per path of a shared Variable, so that different values for it are noticed
        walked = walk(value, graph=True, verb="prefix")
        leaves_with_paths = [(path, walked.leaves[i]) for path, _, _, i in each_leaf(walked.definition)]
        values = [value_of((*prefix, *path), leaf) for path, leaf in leaves_with_paths]
        return TreeState(GraphDef(walked.definition), tuple(path for path, _ in leaves_with_paths), values)

    return jax.tree.map_with_path(convert, node, is_leaf=is_object)


def same_form(structure: Definition, walked: Definition, name: str, *, static: bool = True) -> str | None:
    """Says how a walked object differs from the argument of that name; None if it does not.

    Metadata of Variables and the order of keys in dicts do not count. With `static` False, neither do static attributes
    of nodes that hold no bare arrays.
    """
    keys, children = children_of(structure)
    before = children[list(keys).index(name)]
    (after,) = children_of(walked)[1]
    # Objects are numbered as each walk meets them, so one object may have two numbers: those that go together.
    first: dict[int, int] = {}

    def differ(a: Definition, b: Definition, path: Path) -> str | None:
        shown = show_path(path)
        if a[0] == REFERENCE or b[0] == REFERENCE:
            if a[0] != b[0] or first.get(a[1], a[1]) != b[1]:
                return f"{shown} is newly shared, or no longer shared"
            return None
        if a[0] != b[0] or (a[0] not in (ARRAY, OTHER) and a[1] is not b[1]):
            return f"{shown} was {_kind_name(a)} and is {_kind_name(b)}"
        if a[0] == OTHER and a[1] is not b[1] and a[1] != b[1]:
            return f"{shown} was {a[1]!r} and is {b[1]!r}"
        if a[0] in (NODE, VARIABLE) and a[2] is not None:
            first[a[2]] = b[2]
        if a[0] not in (NODE, CONTAINER):
            return None
        (keys_a, children_a), (keys_b, children_b) = children_of(a), children_of(b)
        if tuple(keys_a) != tuple(keys_b):
            return f"{shown} had the entries {_shown(keys_a)} and has {_shown(keys_b)}"
        ignored = not static and a[0] == NODE and not any(child[0] == ARRAY for child in a[5])
        if a[0] == NODE and not ignored and (a[3].static, a[4]) != (b[3].static, b[4]):
            before, after = dict(zip(a[3].static, a[4])), dict(zip(b[3].static, b[4]))
            names = [n for n in {**before, **after} if before.get(n, _UNSET) != after.get(n, _UNSET)]
            return f"the static attributes {', '.join(map(str, names))} of {shown} changed"
        for key, x, y in zip(keys_a, children_a, children_b):
            if difference := differ(x, y, (*path, key)):
                return difference
        return None

    return differ(before, after, (name,))


def _kind_name(d: Definition) -> str:
    if d[0] in (NODE, CONTAINER, VARIABLE):
        return f"a {d[1].__name__}"
    return "an array" if d[0] == ARRAY else repr(d[1])
