"""States: nested mappings from the names in a model to its Variables and arrays.

A `State` is what `nnx.state` and `nnx.split` return: the leaves of a model without its structure. Inside, it is plain
nested dicts; an inner mapping is handed out as a State that shares its dict, so writing through it writes to the outer
one. A `FlatState` is the same as a sorted sequence of (path, leaf).

The pure dict of a State is the form that checkpoints are written in: nested dicts of arrays. Formats such as msgpack
turn integer keys into strings; `restore_int_paths` turns them back, and `replace_by_pure_dict` accepts both.

Sharp edge: a State holds the model's own Variables, not copies. Changing a Variable of a State changes the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Generic, TypeVar, overload

import jax

from sonde.nnx.rendering import Rendered, Writer
from sonde.nnx.states import traversals
from sonde.nnx.states.filters import Filter, PathParts, filters_to_predicates
from sonde.nnx.states.traversals import show_path
from sonde.nnx.structure import epoch
from sonde.nnx.variable.variable import Variable, value_in

V = TypeVar("V")
K = TypeVar("K")
_FlattenedIndexKey = jax.tree_util.FlattenedIndexKey
_DictKey = jax.tree_util.DictKey


class FlatState(Rendered, Sequence[tuple[PathParts, V]], Generic[V]):
    """The leaves of a State with their paths, as a sequence of pairs.

    Args:
        items: Pairs of path and leaf.
        sort: Whether to sort them by path.
    """

    __slots__ = ("_leaves", "_paths")

    def __init__(self, items: Iterable[tuple[PathParts, V]], /, *, sort: bool):
        pairs = traversals.sort_by_path(items) if sort else list(items)
        self._paths: tuple[PathParts, ...] = tuple(path for path, _ in pairs)
        self._leaves: list[V] = [value for _, value in pairs]

    @staticmethod
    def from_sorted_keys_values(keys: tuple[PathParts, ...], values: list[Any], /) -> FlatState[Any]:
        """A FlatState of paths that are sorted already."""
        flat = object.__new__(FlatState)
        flat._paths = tuple(keys)
        flat._leaves = values
        return flat

    @property
    def paths(self) -> tuple[PathParts, ...]:
        """The paths."""
        return self._paths

    @property
    def leaves(self) -> list[V]:
        """The leaves."""
        return self._leaves

    @overload
    def __getitem__(self, index: int) -> tuple[PathParts, V]: ...
    @overload
    def __getitem__(self, index: slice) -> FlatState[V]: ...
    def __getitem__(self, index: int | slice) -> tuple[PathParts, V] | FlatState[V]:
        if isinstance(index, slice):
            return FlatState.from_sorted_keys_values(self._paths[index], self._leaves[index])
        return self._paths[index], self._leaves[index]

    def __len__(self) -> int:
        return len(self._paths)

    def __iter__(self) -> Iterator[tuple[PathParts, V]]:
        return iter(zip(self._paths, self._leaves))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FlatState) and self._paths == other._paths and self._leaves == other._leaves

    __hash__ = None  # type: ignore[assignment]

    def to_nested_state(self) -> State[Any, V]:
        """The State with these leaves."""
        return from_flat_state(self)

    def split(self, first: Filter, /, *filters: Filter) -> FlatState[V] | tuple[FlatState[V], ...]:
        """One part per filter; each leaf goes to the first filter that matches it.

        Raises:
            ValueError: A leaf is matched by no filter.
        """
        groups = split_flat(self, (first, *filters))
        return groups[0] if len(groups) == 1 else groups

    def filter(self, first: Filter, /, *filters: Filter) -> FlatState[V] | tuple[FlatState[V], ...]:
        """One part per filter; what no filter matches is left out."""
        groups = group_flat(self, filters_to_predicates((first, *filters)))[:-1]
        return groups[0] if len(groups) == 1 else groups

    @staticmethod
    def merge(
        flat_state: Iterable[tuple[PathParts, Any]], /, *flat_states: Iterable[tuple[PathParts, Any]]
    ) -> FlatState[Any]:
        """All pairs of several flat states, sorted."""
        return FlatState([pair for state in (flat_state, *flat_states) for pair in state], sort=True)

    def _nnx_text(self, writer: Writer, depth: int) -> str:
        entries = [f"({path!r}, {writer.write(leaf, depth + 1)})" for path, leaf in self]
        return f"FlatState({writer.lines('[', entries, ']', depth)})"

    def _nnx_attributes(self) -> Mapping[str, object]:
        return {"items": list(self)}


jax.tree_util.register_pytree_with_keys(
    FlatState,
    lambda s: (tuple((_FlattenedIndexKey(i), v) for i, v in enumerate(s._leaves)), s._paths),
    lambda keys, values: FlatState.from_sorted_keys_values(keys, list(values)),
    lambda s: (tuple(s._leaves), s._paths),
)


class State(Rendered, MutableMapping[K, V]):
    """A nested mapping from names and indices to Variables and arrays.

    Args:
        mapping: A mapping, or pairs of key and value.

    Example:
        >>> from sonde import nnx
        >>> state = nnx.State({"layer": {"w": nnx.Param(1.0)}})
        >>> state.layer.w is state["layer"]["w"]
        True
    """

    __slots__ = ("__weakref__", "_mapping")

    _mapping: dict[Any, Any]

    def __init__(self, mapping: Mapping[K, Any] | Iterable[tuple[K, Any]] = (), /, *, _copy: bool = True):
        object.__setattr__(self, "_mapping", dict(mapping) if _copy else mapping)

    @property
    def raw_mapping(self) -> dict[Any, Any]:
        """The nested dicts inside."""
        return self._mapping

    def __getitem__(self, key: K) -> Any:
        # The inner State shares its dict with this one, so that writing to it writes here.
        value = self._mapping[key]
        return State(value, _copy=False) if type(value) is dict else value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):  # Python's protocols look these up; they are never keys
            raise AttributeError(name)
        mapping = object.__getattribute__(self, "_mapping")
        if name not in mapping:
            raise AttributeError(f"No attribute '{name}' in State; it has {list(mapping)}.")
        return self[name]  # type: ignore[index]

    def __setitem__(self, key: K, value: V | Mapping[Any, Any]) -> None:
        self._mapping[key] = value._mapping if isinstance(value, State) else value
        epoch.bump()

    def __setattr__(self, name: str, value: V | Mapping[Any, Any]) -> None:
        self[name] = value  # type: ignore[index]

    def __delitem__(self, key: K) -> None:
        del self._mapping[key]
        epoch.bump()

    def __delattr__(self, name: str) -> None:
        if name not in self._mapping:
            raise AttributeError(f"No attribute '{name}' in State; it has {list(self._mapping)}.")
        del self[name]  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[K]:
        return iter(self._mapping)

    def __len__(self) -> int:
        return len(self._mapping)

    def __contains__(self, key: object) -> bool:
        return key in self._mapping

    def __or__(self, other: State[K, V]) -> State[K, V]:
        return merge_state(self, other) if other else self

    def __sub__(self, other: State[K, V]) -> State[K, V]:
        return diff(self, other)

    def __getstate__(self) -> Any:
        return self._mapping

    def __setstate__(self, mapping: dict[Any, Any]) -> None:
        object.__setattr__(self, "_mapping", mapping)

    def map(self, f: Callable[[PathParts, V], Any]) -> State[K, Any]:
        """A State with `f(path, leaf)` in place of every leaf."""
        return map_state(f, self)

    def flat_state(self) -> FlatState[V]:
        """The leaves with their paths, sorted."""
        return to_flat_state(self)

    @classmethod
    def from_flat_path(cls, flat_state: Mapping[PathParts, V] | Iterable[tuple[PathParts, V]], /) -> State[Any, V]:
        """The State with these leaves at these paths."""
        return from_flat_state(flat_state, cls=cls)

    def split(self, first: Filter, /, *filters: Filter) -> State[K, V] | tuple[State[K, V], ...]:
        """The same as `split_state`."""
        return split_state(self, first, *filters)

    def filter(self, first: Filter, /, *filters: Filter) -> State[K, V] | tuple[State[K, V], ...]:
        """The same as `filter_state`."""
        return filter_state(self, first, *filters)

    @staticmethod
    def merge(state: Mapping[Any, Any], /, *states: Mapping[Any, Any]) -> State[Any, Any]:
        """The same as `merge_state`."""
        return merge_state(state, *states)

    def to_pure_dict(self, extract_fn: Callable[[Any], Any] | None = None) -> dict[Any, Any]:
        """The same as `to_pure_dict`."""
        return to_pure_dict(self, extract_fn)

    def replace_by_pure_dict(self, pure_dict: Mapping[Any, Any], replace_fn: Callable[..., Any] | None = None) -> None:
        """The same as `replace_by_pure_dict`."""
        replace_by_pure_dict(self, pure_dict, replace_fn)

    def _nnx_text(self, writer: Writer, depth: int) -> str:
        return f"State({_nested_text(self._mapping, writer, depth)})"

    def _nnx_attributes(self) -> Mapping[str, object]:
        return self._mapping


def _nested_text(mapping: Mapping[Any, Any], writer: Writer, depth: int) -> str:
    entries = [
        f"{k!r}: {_nested_text(v, writer, depth + 1) if type(v) is dict else writer.write(v, depth + 1)}"
        for k, v in mapping.items()
    ]
    return writer.lines("{", entries, "}", depth)


def _flatten(state: State[Any, Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    mapping = state._mapping
    keys = tuple(traversals.sorted_keys(mapping))
    return tuple([mapping[key] for key in keys]), keys


def _flatten_with_keys(state: State[Any, Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    values, keys = _flatten(state)
    return tuple((_DictKey(key), value) for key, value in zip(keys, values)), keys


def _unflatten(keys: tuple[Any, ...], values: Iterable[Any]) -> State[Any, Any]:
    return State(dict(zip(keys, values)), _copy=False)


jax.tree_util.register_pytree_with_keys(State, _flatten_with_keys, _unflatten, _flatten)


def _is_inner(value: object) -> bool:
    return type(value) is dict or isinstance(value, Mapping)


def _leaves(state: Mapping[Any, Any]) -> Iterator[tuple[PathParts, Any]]:
    """Pairs of path and leaf in the order of states."""
    if isinstance(state, FlatState):
        yield from state
        return

    def visit(mapping: Mapping[Any, Any], prefix: PathParts) -> Iterator[tuple[PathParts, Any]]:
        for key in traversals.sorted_keys(mapping):
            value = mapping[key]
            if _is_inner(value):
                yield from visit(value, (*prefix, key))
            else:
                yield (*prefix, key), value

    yield from visit(state.raw_mapping if isinstance(state, State) else state, ())


def to_flat_state(state: Mapping[Any, Any]) -> FlatState[Any]:
    """The leaves of a State with their paths, sorted."""
    return FlatState(_leaves(state), sort=False)


def from_flat_state(
    flat_state: Mapping[PathParts, Any] | Iterable[tuple[PathParts, Any]], *, cls: Callable[[Any], Any] = State
) -> Any:
    """The nested State (or another mapping, `cls`) with these leaves at these paths."""
    return _wrap(traversals.unflatten_mapping(flat_state), cls)


def _wrap(nested: dict[Any, Any], cls: Callable[[Any], Any]) -> Any:
    if cls is State:
        return State(nested, _copy=False)
    return nested if cls is dict else cls(nested)


def group_flat(flat: Iterable[tuple[PathParts, Any]], predicates: Sequence[Any]) -> tuple[FlatState[Any], ...]:
    """One flat state per predicate, and what no predicate matches as the last."""
    groups: list[tuple[list[PathParts], list[Any]]] = [([], []) for _ in range(len(predicates) + 1)]
    for path, value in flat:
        group_index = 0
        for predicate in predicates:
            if predicate(path, value):
                break
            group_index += 1
        groups[group_index][0].append(path)
        groups[group_index][1].append(value)
    return tuple(FlatState.from_sorted_keys_values(tuple(paths), values) for paths, values in groups)


def split_flat(flat: Iterable[tuple[PathParts, Any]], filters: Sequence[Filter]) -> tuple[FlatState[Any], ...]:
    """One flat state per filter; each leaf goes to the first filter that matches it.

    Raises:
        ValueError: A leaf is matched by no filter.
    """
    *groups, unmatched = group_flat(flat, filters_to_predicates(filters))
    if len(unmatched):
        first_leaves = ", ".join(f"{show_path(path)} ({type(leaf).__name__})" for path, leaf in unmatched[:10])
        raise ValueError(
            f"{len(unmatched)} leaves are matched by no filter: {first_leaves}"
            f"{', ...' if len(unmatched) > 10 else ''}. Add a filter for them, or `...` at the end to take "
            "whatever is left."
        )
    return tuple(groups)


def select_flat(flat: Iterable[tuple[PathParts, Any]], filters: Sequence[Filter]) -> tuple[FlatState[Any], ...]:
    """One flat state per filter; what no filter matches is left out."""
    return group_flat(flat, filters_to_predicates(filters))[:-1]


def _one_or_all(groups: Sequence[FlatState[Any]]) -> Any:
    states = tuple(map(from_flat_state, groups))
    return states[0] if len(states) == 1 else states


def states_of(groups: tuple[FlatState[Any], ...]) -> tuple[Any, ...]:
    """Flat states as nested ones."""
    return tuple(map(_state_of, groups))


def _state_of(group: FlatState[Any]) -> Any:
    if len(group) == 1 and group.paths[0] == ():  # a lone Variable or array is its own state
        return group.leaves[0]
    return State(traversals.unflatten_mapping(group), _copy=False)


def split_state(state: Mapping[Any, Any], first: Filter, /, *filters: Filter) -> Any:
    """One State per filter; each leaf goes to the first filter that matches it. A single State for a single filter.

    Raises:
        ValueError: A leaf is matched by no filter.

    Example:
        >>> from sonde import nnx
        >>> state = nnx.State({"w": nnx.Param(1), "mean": nnx.BatchStat(2)})
        >>> params, rest = nnx.split_state(state, nnx.Param, ...)
        >>> list(params), list(rest)
        (['w'], ['mean'])
    """
    return _one_or_all(split_flat(_leaves(state), (first, *filters)))


def filter_state(state: Mapping[Any, Any], first: Filter, /, *filters: Filter) -> Any:
    """One State per filter; what no filter matches is left out."""
    return _one_or_all(select_flat(_leaves(state), (first, *filters)))


def merge_state(state: Mapping[Any, Any], /, *states: Mapping[Any, Any], cls: Callable[[Any], Any] = State) -> Any:
    """One State with the leaves of all; where several have a leaf, the last wins.

    Raises:
        ValueError: A path is a leaf in one state and an inner node in another.
    """
    if not states:
        return state if isinstance(state, State) and cls is State else _wrap(_nested(state), cls)
    out = _nested(state)
    for later_state in states:
        _merge_into(out, _nested(later_state), ())
    return _wrap(out, cls)


def _nested(state: Mapping[Any, Any]) -> dict[Any, Any]:
    """Fresh nested dicts with the leaves of a state."""
    if isinstance(state, FlatState):
        return traversals.unflatten_mapping(state)
    mapping = state.raw_mapping if isinstance(state, State) else state
    return {key: _nested(value) if _is_inner(value) else value for key, value in mapping.items()}


def _merge_into(target: dict[Any, Any], source: dict[Any, Any], path: PathParts) -> None:
    for key, value in source.items():
        existing = target.get(key)
        if key in target and (type(existing) is dict) != (type(value) is dict):
            raise ValueError(
                f"Cannot merge states: {show_path((*path, key))} is a leaf in one and has entries in another."
            )
        if type(value) is dict and key in target:
            _merge_into(target[key], value, (*path, key))
        else:
            target[key] = value


def diff(state: Mapping[Any, Any], other: Mapping[Any, Any]) -> Any:
    """The leaves of `state` at paths where `other` has no leaf."""
    # By path, whatever the values are: values are arrays, which cannot be compared while tracing.
    gone = set(to_flat_state(other).paths)
    return from_flat_state((path, leaf) for path, leaf in _leaves(state) if path not in gone)


def map_state(f: Callable[[PathParts, Any], Any], state: Mapping[Any, Any]) -> Any:
    """A State with `f(path, leaf)` in place of every leaf."""
    return from_flat_state(((path, f(path, leaf)) for path, leaf in _leaves(state)), cls=_like(state))


def _like(state: Mapping[Any, Any]) -> Callable[[Any], Any]:
    return type(state) if not isinstance(state, (State, FlatState)) else State


def to_pure_dict(state: Mapping[Any, Any], extract_fn: Callable[[Any], Any] | None = None) -> dict[Any, Any]:
    """Nested dicts with the values of a state.

    Args:
        state: The state.
        extract_fn: What to store for a leaf; the value of a Variable by default.

    Example:
        >>> from sonde import nnx
        >>> nnx.to_pure_dict(nnx.State({"layer": {"w": nnx.Param(1.0)}}))
        {'layer': {'w': 1.0}}
    """
    extract = extract_fn or value_in
    return traversals.unflatten_mapping((path, extract(leaf)) for path, leaf in to_flat_state(state))


def restore_int_paths(pure_dict: Mapping[Any, Any]) -> dict[Any, Any]:
    """Nested dicts with keys such as "0" turned into integers."""
    return {
        int(key) if isinstance(key, str) and key.isdigit() else key: restore_int_paths(value)
        if isinstance(value, Mapping)
        else value
        for key, value in pure_dict.items()
    }


def _replaced(leaf: object, value: object) -> Any:
    return leaf.replace(value) if isinstance(leaf, Variable) else value


def replace_by_pure_dict(
    state: State[Any, Any], pure_dict: Mapping[Any, Any], replace_fn: Callable[[Any, Any], Any] | None = None
) -> None:
    """Puts the values of nested dicts into a state, in place; other leaves stay.

    Args:
        state: The state to change.
        pure_dict: Nested dicts, as `to_pure_dict` makes them.
        replace_fn: Makes the new leaf from the old one and the value.

    Raises:
        ValueError: The dicts have a path that the state does not. Nothing is changed then.
    """
    replace = replace_fn or _replaced
    leaves_by_text = {tuple(map(str, path)): (path, leaf) for path, leaf in to_flat_state(state)}
    # All paths are looked up before the first replacement.
    replacements = []
    for path, value in traversals.flatten_mapping(pure_dict).items():
        if tuple(map(str, path)) not in leaves_by_text:
            raise ValueError(
                f"the state has no leaf at {show_path(path)}, which pure_dict has. It has "
                f"{len(leaves_by_text)} leaves, such as {', '.join(map(show_path, list(leaves_by_text)[:5]))}."
            )
        replacements.append((*leaves_by_text[tuple(map(str, path))], value))
    for path, leaf, value in replacements:
        node: Any = state
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = replace(leaf, value)
