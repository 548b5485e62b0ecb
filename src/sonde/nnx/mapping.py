"""Copies of a model with other leaves or other nodes: `map`, `recursive_map`, `with_vars`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sonde.nnx._walk import build, walk
from sonde.nnx.filters import Filter, PathParts
from sonde.nnx.graph_mode import resolve
from sonde.nnx.metadata import shared
from sonde.nnx.module_sites import carry_all

A = TypeVar("A")


def map(
    f: Callable[[PathParts, Any], Any], node: A, /, *, graph: bool | None = None, recreate_variables: bool = True
) -> A:
    """A copy of a model with `f(path, leaf)` in the place of every leaf.

    Args:
        f: gets a path and a Variable or array. If it returns a bare value for a Variable, the copy has a Variable
            around it.
        node: a Module, any other node, or a pytree of them.
        graph: True allows shared references, False demands a tree. None: the current mode.
        recreate_variables: False leaves bare values bare.

    Example:
        >>> from sonde import nnx
        >>> nnx.map(lambda path, v: v * 2, nnx.Dict(w=nnx.Param(1.0))).w.get_value()
        2.0
    """
    found = walk(node, graph=resolve(graph), who="map")
    leaves = [f(path, leaf) for path, leaf in found.flat()]
    return carry_all(node, build(found.definition, leaves, recreate=recreate_variables))


def recursive_map(f: Callable[[PathParts, Any], Any], node: Any, /, *, graph: bool | None = None) -> Any:
    """A copy of a model in which every part went through `f`, children before parents.

    Args:
        f: gets a path and a leaf, static attribute (in graph mode) or node of the copy; what it returns takes its
            place.
        node: a Module, any other node, or a pytree of them.
        graph: True allows shared references, False demands a tree. None: the current mode.
    """
    found = walk(node, graph=resolve(graph), who="recursive_map")
    return carry_all(node, build(found.definition, found.leaves, finish=f))


def with_vars(
    node: A,
    /,
    *,
    hijax: bool | None = None,
    ref: bool | None = None,
    mutable: bool | None = None,
    only: Filter = ...,
    allow_duplicates: bool = False,
) -> A:
    """A copy of a model that shares its Variables.

    In Flax it changes how Variables are backed; Sonde has one way, so nothing is left to change, and asking for
    another backing is an error.

    Args:
        node: a Module, any other node, or a pytree of them.
        hijax: must not be True.
        ref: must not be True.
        mutable: must not be False.
        only: accepted.
        allow_duplicates: accepted; shared references stay shared.
    """
    del only, allow_duplicates
    shared({"hijax": bool(hijax), "ref": bool(ref)})
    if mutable is False:
        raise ValueError("with_vars(mutable=False): Sonde's Variables can always be changed at their trace level.")
    found = walk(node, graph=True, who="with_vars")
    return carry_all(node, build(found.definition, found.leaves))


vars_as = with_vars
