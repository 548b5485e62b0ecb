"""Streams of keys inside models: splitting, forking, reseeding, restoring.

Two ways. `with_rngs` returns a copy of a model with other streams. `split_rngs` and `fork_rngs` change the model's
streams in place and return backups for `restore_rngs` (which keeps the advanced counters, so no key is used twice);
they are also context managers and decorators. With `graph=False` or `graph_updates=False` they return a copy, like
`with_rngs`, and leave the model as it is, except that each of its streams has given one key.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any as AnyType
from typing import Literal, cast

import jax
import jax.numpy as jnp

from sonde.nnx.rng.rngs import RngStream, Shape, ShapeByFilter, as_key, shape_by_stream
from sonde.nnx.states.filters import Any, Filter, to_predicate
from sonde.nnx.states.traversals import show_path
from sonde.nnx.structure import iteration
from sonde.nnx.structure.mapping import recursive_map
from sonde.nnx.structure.mode import resolve, resolve_updates

_MISSING: AnyType = object()
Backup = tuple[RngStream, AnyType, AnyType]


class SplitBackups(Iterable[Backup]):
    """Streams with their earlier keys and counters; leaving a `with` block restores them."""

    def __init__(self, backups: Iterable[Backup]):
        self.backups = list(backups)

    def __iter__(self) -> Iterator[Backup]:
        return iter(self.backups)

    def __enter__(self) -> SplitBackups:
        return self

    def __exit__(self, *exc_info: object) -> None:
        restore_rngs(self)


def _streams(node: AnyType, *, graph: bool | None, verb: str) -> list[tuple[tuple[AnyType, ...], RngStream]]:
    nodes = iteration.iter_nodes(node, graph=graph, verb=verb)
    return [(path, stream) for path, stream in nodes if isinstance(stream, RngStream)]


def restore_rngs(backups: Iterable[tuple[AnyType, ...]], /) -> None:
    """Puts keys and counters back, as `split_rngs`, `fork_rngs` and `backup_keys` saved them."""
    for stream, key, *count in backups:
        stream.key.set_value(key)
        if count:
            stream.count.set_value(count[0])
        # `backup_keys` keeps no counters: of a split counter, which has one entry per key, the first is taken.
        elif stream.count.shape != key.shape:
            stream.count.set_value(stream.count.get_value().reshape(-1)[0])


def backup_keys(node: AnyType, /, *, graph: bool | None = None) -> list[tuple[RngStream, jax.Array]]:
    """The streams of a model with their keys, for `restore_rngs`."""
    return [(s, s.key.get_value()) for _, s in _streams(node, graph=graph, verb="backup_keys")]


def split_rngs(
    node: AnyType = _MISSING,
    /,
    *,
    splits: Shape,
    only: Filter = ...,
    squeeze: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> AnyType:
    """Makes the streams of a model hold arrays of keys, for functions that are mapped over them.

    Args:
        node: The model. Without it, returns a decorator that does this to all arguments of a function, and restores
            them afterwards.
        splits: The shape of the arrays.
        only: Which streams, by name or another filter.
        squeeze: With `splits=1`, drop the axis of length one.
        graph: False demands a tree, and returns a copy.
        graph_updates: False returns a copy.

    Returns:
        Backups for `restore_rngs`, which are a context manager too; or the copy.

    Example:
        >>> from sonde import nnx
        >>> rngs = nnx.Rngs(0)
        >>> with nnx.split_rngs(rngs, splits=3):
        ...     rngs.default.key.shape
        (3,)
    """
    if squeeze and splits != 1:
        raise ValueError(f"split_rngs(squeeze=True) takes splits=1, got splits={splits}.")
    matches = _of_both_variables(only)

    def replacement(path: tuple[AnyType, ...], stream: RngStream) -> RngStream | None:
        if not matches(path, stream):
            return None
        split_stream = stream.split(splits)
        return RngStream(split_stream.key.get_value()[0], tag=split_stream.tag) if squeeze else split_stream

    return _replace_streams("split_rngs", node, replacement, graph, graph_updates)


def fork_rngs(
    node: AnyType = _MISSING,
    /,
    *,
    split: ShapeByFilter = None,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> AnyType:
    """Makes each stream of a model start again from a new key.

    Args:
        node: The model. Without it, returns a decorator that does this to all arguments of a function, and restores
            them afterwards.
        split: A shape for all streams; or shapes by filter, where None means one key. With filters, streams that no
            filter matches are left alone.
        graph: False demands a tree, and returns a copy.
        graph_updates: False returns a copy.

    Returns:
        Backups for `restore_rngs`, which are a context manager too; or the copy.
    """
    rules = split.items() if isinstance(split, Mapping) else [(..., split)]
    chosen = [(_of_both_variables(only), shape) for only, shape in rules]

    def replacement(path: tuple[AnyType, ...], stream: RngStream) -> RngStream | None:
        for matches, shape in chosen:
            if matches(path, stream):
                return stream.fork(split=shape)
        return None

    return _replace_streams("fork_rngs", node, replacement, graph, graph_updates)


def _of_both_variables(only: Filter) -> Callable[[tuple[AnyType, ...], RngStream], bool]:
    """Whether a filter of Variables matches the key and the counter of a stream."""
    matches = to_predicate(only)
    return lambda path, stream: matches((*path, "key"), stream.key) and matches((*path, "count"), stream.count)


def _replace_streams(
    verb: str,
    node: AnyType,
    replacement: Callable[[tuple[AnyType, ...], RngStream], RngStream | None],
    graph: bool | None,
    graph_updates: bool | None,
) -> AnyType:
    if node is _MISSING:

        def decorate(f: Callable[..., AnyType]) -> Callable[..., AnyType]:
            @functools.wraps(f)
            def wrapper(*args: AnyType, **kwargs: AnyType) -> AnyType:
                if _copies(graph, graph_updates):
                    args, kwargs = _copy((args, kwargs), replacement, graph)
                    return f(*args, **kwargs)
                with _in_place(verb, (args, kwargs), replacement):
                    return f(*args, **kwargs)

            return wrapper

        return decorate
    if _copies(graph, graph_updates):
        return _copy(node, replacement, graph)
    return _in_place(verb, node, replacement)


def _copies(graph: bool | None, graph_updates: bool | None) -> bool:
    return not (resolve_updates(graph_updates) and resolve(graph))


def _copy(node: AnyType, replacement: Callable[..., RngStream | None], graph: bool | None) -> AnyType:
    def replaced(path: tuple[AnyType, ...], value: AnyType) -> AnyType:
        if not isinstance(value, RngStream):
            return value
        new_stream = replacement(path, value)
        return value if new_stream is None else new_stream

    return recursive_map(replaced, node, graph=graph)


def _in_place(verb: str, node: AnyType, replacement: Callable[..., RngStream | None]) -> SplitBackups:
    backups = []
    for path, stream in _streams(node, graph=True, verb=verb):
        new_stream = replacement(path, stream)
        if new_stream is not None:
            backups.append((stream, stream.key.get_value(), stream.count.get_value()))
            stream.key.set_value(new_stream.key.get_value())
            stream.count.set_value(new_stream.count.get_value())
    return SplitBackups(backups)


def with_rngs(
    node: AnyType = _MISSING,
    /,
    *,
    split: ShapeByFilter = None,
    fork: Filter | Sequence[Filter] = None,
    broadcast: ShapeByFilter = None,
    only: Filter = True,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> AnyType:
    """A copy of a model with other streams.

    Args:
        node: The model. Without it, returns a decorator that does this to all arguments of a function.
        split: A shape, or shapes by filter: these streams hold arrays of keys.
        fork: Which of the other streams start again, each from a new key.
        broadcast: A shape, or shapes by filter: these streams hold one key many times.
        only: Which streams to change; the others are left alone.
        graph: True allows shared references, False demands a tree. None: the current mode.
        graph_updates: Accepted as False or None.

    Raises:
        ValueError: Two of `split`, `broadcast` and `fork` name the same stream; `...` names none.
    """
    if graph_updates:
        raise ValueError("with_rngs returns a copy; graph_updates=True is not supported.")
    matches, forks = to_predicate(only), to_predicate(cast(Filter, fork))
    split_shape, broadcast_shape = shape_by_stream(split), shape_by_stream(broadcast)
    naming = {"split": _named(split), "broadcast": _named(broadcast), "fork": _named(fork)}

    def replacement(path: tuple[AnyType, ...], stream: RngStream) -> RngStream | None:
        if not matches(path, stream):
            return None
        rules = [rule for rule, names in naming.items() if names(path, stream)]
        if len(rules) > 1:
            raise ValueError(
                f"with_rngs: {' and '.join(rules)} both name the stream at {show_path(path)}. Name it in one of them."
            )
        if (shape := split_shape(path, stream)) is not None:
            return stream.split(shape)
        if (shape := broadcast_shape(path, stream)) is not None:
            return stream.broadcast(shape)
        return stream.fork() if forks(path, stream) else None

    return _replace_streams("with_rngs", node, replacement, graph, False)


def _named(rule: ShapeByFilter | Filter | Sequence[Filter]) -> Callable[[tuple[AnyType, ...], RngStream], bool]:
    """Whether a rule names a stream; catch-all rules (`...` and bare shapes) name none."""
    filters: list[AnyType] = list(rule) if isinstance(rule, (Mapping, tuple, list)) and not _is_shape(rule) else [rule]
    named = [f for f in filters if f is not ... and f is not None and f is not True and not _is_shape(f)]
    return to_predicate(Any(*named))


def _is_shape(rule: ShapeByFilter | Filter | Sequence[Filter]) -> bool:
    return type(rule) is int or (isinstance(rule, (tuple, list)) and all(type(n) is int for n in rule))


def reseed(
    node: AnyType,
    /,
    *,
    graph: bool | None = None,
    policy: Literal["scalars_only", "match_shape"]
    | Callable[[tuple[AnyType, ...], jax.Array, tuple[int, ...]], jax.Array] = "scalars_only",
    **stream_keys: AnyType,
) -> None:
    """Gives streams of a model new keys and sets their counters to zero, in place.

    Args:
        node: The model.
        graph: True allows shared references, False demands a tree. None: the current mode.
        policy: What to do with streams that hold arrays of keys: "scalars_only" raises an error, "match_shape" splits
            the new key, a function of (path, key, shape) makes the new keys.
        **stream_keys: Seeds by the name of the stream. Streams with the same name get different keys.

    Raises:
        ValueError: A stream holds an array of keys and the policy is "scalars_only". Nothing is changed then.
    """
    sources = {
        name: RngStream(seed.key.get_value() if isinstance(seed, RngStream) else as_key(seed), tag=name)
        for name, seed in stream_keys.items()
    }
    # Collected first: if one stream cannot be reseeded, none is.
    changes = []
    for path, stream in _streams(node, graph=graph, verb="reseed"):
        if stream.tag not in sources:
            continue
        shape = stream.key.shape
        key = sources[stream.tag]()
        if callable(policy):
            key = policy(path, key, shape)
        elif policy == "match_shape":
            key = jax.random.split(key, shape) if shape else key
        elif policy != "scalars_only":
            raise ValueError(f"Unknown policy {policy!r}: it is 'scalars_only', 'match_shape' or a function.")
        elif shape:
            raise ValueError(
                f"Cannot reseed the stream at {show_path(path)}: it holds an array of keys of "
                f"shape {shape}. Pass policy='match_shape' to split the new key, or a function that makes the keys."
            )
        changes.append((stream, key, shape))
    for stream, key, shape in changes:
        stream.key.set_value(key)
        stream.count.set_value(jnp.zeros(shape, jnp.uint32))
