"""Copies of a model, with the same leaves or with others: `clone`, `map`, `recursive_map`, `with_vars`, `as_pure`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax

from sonde.nnx.modules.module_sites import mark_copies
from sonde.nnx.states.filters import Filter, PathParts, to_predicate
from sonde.nnx.states.traversals import show_path
from sonde.nnx.structure.build import build
from sonde.nnx.structure.iteration import find_duplicates
from sonde.nnx.structure.mode import resolve
from sonde.nnx.structure.walk import walk
from sonde.nnx.variable.variable import Variable, copied, value_in

T = TypeVar("T")

A = TypeVar("A")


def map(
    f: Callable[[PathParts, Any], Any], node: A, /, *, graph: bool | None = None, recreate_variables: bool = True
) -> A:
    """A copy of a model with `f(path, leaf)` in place of every leaf.

    Args:
        f: Gets a path and a Variable or array. A bare value returned for a Variable is wrapped in a new one.
        node: A Module, any other node, or a pytree of them.
        graph: True allows shared references, False demands a tree. None: the current mode.
        recreate_variables: False leaves bare values bare.

    Example:
        >>> from sonde import nnx
        >>> nnx.map(lambda path, v: v * 2, nnx.Dict(w=nnx.Param(1.0))).w.get_value()
        2.0
    """
    walked = walk(node, graph=resolve(graph), verb="map")
    leaves = [f(path, leaf) for path, leaf in walked.flat()]
    return mark_copies(node, build(walked.definition, leaves, recreate=recreate_variables))


def recursive_map(f: Callable[[PathParts, Any], Any], node: A, /, *, graph: bool | None = None) -> A:
    """A copy of a model with `f` applied to every part, children before parents.

    Args:
        f: Gets a path and a leaf, static attribute (in graph mode) or node of the copy; its result replaces that part.
        node: A Module, any other node, or a pytree of them.
        graph: True allows shared references, False demands a tree. None: the current mode.
    """
    walked = walk(node, graph=resolve(graph), verb="recursive_map")
    return mark_copies(node, build(walked.definition, walked.leaves, finish=f))


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
    """A copy of a model whose Variables keep their values in array references, or no longer do.

    Variables with references can be written from inside plain `jax.jit`. A Variable whose entries stay the same is
    shared with the model.

    Args:
        node: A Module, any other node, or a pytree of them.
        hijax: The new entry `hijax`, see `nnx.Variable`; None leaves it unchanged.
        ref: The new entry `ref`; None leaves it unchanged.
        mutable: Must not be False.
        only: Which Variables.
        allow_duplicates: Whether a Variable may occur twice.

    Raises:
        ValueError: A Variable occurs twice, and that was not allowed.
    """
    if mutable is False:
        raise ValueError("with_vars(mutable=False): Sonde's Variables can always be changed at their trace level.")
    if not allow_duplicates and (shared := find_duplicates(node, only=only)):
        paths = ", ".join(show_path(path) for path in shared[0])
        raise ValueError(
            f"with_vars: Found duplicate at paths: {paths}. A copy would have separate Variables there; make them "
            "separate first, or pass allow_duplicates=True to keep them shared."
        )
    entries = {name: value for name, value in (("hijax", hijax), ("ref", ref)) if value is not None}
    chosen = to_predicate(only)

    def changed(path: PathParts, leaf: object) -> Any:
        if not isinstance(leaf, Variable) or not chosen(path, leaf):
            return leaf
        return leaf.replace(**entries) if any(leaf.get_metadata(k) != v for k, v in entries.items()) else leaf

    walked = walk(node, graph=True, verb="with_vars")
    leaves = [changed(path, leaf) for path, leaf in zip(walked.paths, walked.leaves)]
    return mark_copies(node, build(walked.definition, leaves))


vars_as = with_vars


def clone(node: A, variables: bool = True, *, arrays: bool = False, graph: bool | None = None) -> A:
    """A copy of a model: new nodes, new Variables, the same arrays.

    Args:
        node: A Module, any other node, or a pytree of them.
        variables: False shares the Variables with the original.
        arrays: True also copies the arrays, so that one of the two may be donated to a jitted function.
        graph: True allows shared references, False demands a tree. None: the current mode.

    Raises:
        ValueError: `arrays` without `variables`.
    """
    if arrays and not variables:
        raise ValueError("clone(arrays=True) copies Variables too; variables=False contradicts it.")
    walked = walk(node, graph=resolve(graph), verb="clone")
    leaves = walked.leaves
    if variables:
        leaves = copied(leaves)
    if arrays:
        leaves = jax.tree.map(_copied_array, leaves)
    return mark_copies(node, build(walked.definition, leaves))


def _copied_array(x: Any) -> Any:
    return x.copy() if hasattr(x, "copy") and hasattr(x, "dtype") else x


def as_pure(tree: A) -> A:
    """A copy of a pytree (or model) with bare values in place of Variables; shared parts are duplicated.

    Example:
        >>> from sonde import nnx
        >>> nnx.as_pure({"w": nnx.Param(1.0)})
        {'w': 1.0}
    """
    return jax.tree.map(value_in, tree, is_leaf=lambda x: isinstance(x, Variable))


pure = as_pure
