"""Splitting and merging several objects as one graph, and bringing a changed graph back to the objects it came from.

`split_context` and `merge_context` number objects across several calls of `split` and `merge`, so that what is shared
stays shared. An `update_context` ties the four steps of a transform written by hand together:

    with nnx.update_context("name"):
        split outside; then inside the transform: merge (inner=True), change the model, split; outside again:
        merge (inner=False), which gives back the objects of the first split, changed as their copies were.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from sonde.nnx.states.filters import Filter
from sonde.nnx.states.state import merge_state, split_flat, states_of
from sonde.nnx.structure.build import build, collect, restore
from sonde.nnx.structure.definitions import numbered_as
from sonde.nnx.structure.identities import IndexMap, RefMap
from sonde.nnx.structure.split_merge import GraphDef
from sonde.nnx.structure.walk import Walk, objects_of, walk
from sonde.nnx.variable.variable import Variable


class UpdateContext:
    """The splits and merges that belong together under one name.

    Attributes:
        tag: The name.
        outer: The objects of the outer split, by number; None before it.
        inner: The numbers of their copies; None before the inner merge.
    """

    def __init__(self, tag: Hashable):
        self.tag = tag
        self.outer: IndexMap | None = None
        self.inner: RefMap | None = None


class _Open(threading.local):
    """The open update contexts of this thread."""

    contexts: tuple[UpdateContext, ...] = ()


_open = _Open()


class update_context(contextlib.ContextDecorator):
    """Opens an update context; see `sonde.nnx.structure.contexts`. Also a decorator.

    Args:
        tag: Its name.

    Example:
        >>> from sonde import nnx
        >>> model = nnx.Dict(a=1)
        >>> with nnx.update_context("step"):
        ...     with nnx.split_context("step") as outside:
        ...         parts = outside.split(model)
        ...     with nnx.merge_context("step", inner=True) as inside:
        ...         copy = inside.merge(*parts)
        ...     copy.b = 2
        ...     with nnx.split_context("step") as inside:
        ...         parts = inside.split(copy)
        ...     with nnx.merge_context("step", inner=False) as outside:
        ...         outside.merge(*parts) is model
        True
        >>> model.b
        2
    """

    def __init__(self, tag: Hashable, /):
        self._tag = tag

    def __enter__(self) -> UpdateContext:
        context = UpdateContext(self._tag)
        _open.contexts = (*_open.contexts, context)
        return context

    def __exit__(self, *exc_info: object) -> None:
        _open.contexts = _open.contexts[:-1]


def current_update_context(tag: Hashable, /) -> UpdateContext:
    """The innermost open update context of that name.

    Raises:
        ValueError: There is none.
    """
    for context in reversed(_open.contexts):
        if context.tag == tag:
            return context
    raise ValueError(f"No update context is open for {tag!r}: write `with nnx.update_context({tag!r}):` around it.")


class SplitContext:
    """Splits several objects as one graph; what `split_context` gives."""

    def __init__(self, update: UpdateContext | None):
        self._update = update
        self._seen: dict[int, int] = {}
        self._visited: list[Walk] = []

    def split(self, node: Any, *filters: Filter) -> Any:
        """As `nnx.split`; an object that was visited before becomes a reference without leaves."""
        walked = walk(node, graph=True, verb="split", seen=self._seen)
        self._visited.append(walked)  # numbers are kept by id, so the objects must stay alive
        definition = walked.definition
        if self._update is not None and self._update.inner is not None:
            definition = numbered_as(definition, self._seen, self._update.inner.numbers())
        if not filters:
            return GraphDef(definition), walked.state()
        return GraphDef(definition), *states_of(split_flat(walked.flat(), filters))

    def _close(self) -> None:
        if self._update is not None and self._update.inner is None:
            self._update.outer = IndexMap(objects_of(self._visited, self._seen))


class MergeContext:
    """Merges several objects as one graph; what `merge_context` gives."""

    def __init__(self, update: UpdateContext | None, inner: bool | None):
        self._update = update
        self._inner = inner
        self._known: dict[Any, Any] = {}

    def merge(self, graphdef: GraphDef[Any], state: Mapping[Any, Any], /, *states: Any) -> Any:
        """As `nnx.merge`, with new Variables; references resolve to objects merged before, or to outer ones."""
        leaves = collect(graphdef.definition, merge_state(state, *states) if states else state)
        if self._update is not None and not self._inner:
            return restore(graphdef.definition, iter(leaves), self._known, self._update.outer or {})
        # Inside the transform the Variables must belong to its trace level.
        own = [leaf.copy() if isinstance(leaf, Variable) else leaf for leaf in leaves]
        return build(graphdef.definition, own, known=self._known)

    def _close(self) -> None:
        if self._update is not None and self._inner:
            self._update.inner = RefMap.from_indexmap(self._known)


@contextlib.contextmanager
def split_context(ctxtag: Hashable = None) -> Iterator[SplitContext]:
    """A context in which several objects are split as one graph.

    Args:
        ctxtag: The name of an open update context, or None.

    Example:
        >>> from sonde import nnx
        >>> inner = nnx.Dict(w=nnx.Param(1.0))
        >>> with nnx.split_context() as context:
        ...     first, second = context.split(nnx.Dict(a=inner)), context.split(inner)
        >>> with nnx.merge_context() as context:
        ...     context.merge(*first).a is context.merge(*second)
        True
    """
    context = SplitContext(None if ctxtag is None else current_update_context(ctxtag))
    yield context
    context._close()


@contextlib.contextmanager
def merge_context(ctxtag: Hashable = None, inner: bool | None = None) -> Iterator[MergeContext]:
    """A context in which several objects are merged as one graph.

    Args:
        ctxtag: The name of an open update context, or None.
        inner: In an update context, True for the copies inside the transform, False for the objects outside.

    Raises:
        ValueError: Only one of the two is given.
    """
    if (ctxtag is None) != (inner is None):
        raise ValueError(f"merge_context takes both ctxtag and inner, or neither; got {ctxtag!r} and {inner!r}.")
    context = MergeContext(None if ctxtag is None else current_update_context(ctxtag), inner)
    yield context
    context._close()
