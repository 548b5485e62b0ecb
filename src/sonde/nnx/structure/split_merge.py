"""Taking models apart and putting them together: `split`, `merge`, `state`, `clone` and related functions.

`split` gives a `GraphDef` (the structure, hashable) and States (the leaves); `merge` is the inverse. The States hold
the model's own Variables, not copies of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import jax

from sonde.nnx.modules.module_sites import carry_all, carry_below, origin_of
from sonde.nnx.states import traversals
from sonde.nnx.states.filters import Filter
from sonde.nnx.states.state import FlatState, State, merge_state, select_flat, split_flat
from sonde.nnx.structure.build import build, collect
from sonde.nnx.structure.graph_def import GraphDef, GraphState, lone_leaf, state_in
from sonde.nnx.structure.mode import resolve
from sonde.nnx.structure.value_kinds import ARRAY, VARIABLE
from sonde.nnx.structure.walk import Walk, walk
from sonde.nnx.variable.variable import Variable, copied

A = TypeVar("A")


# ------------------------------------------------------------------------------------------------ taking apart


def _nested(found: Walk) -> Any:
    if found.definition[0] == VARIABLE or found.definition[0] == ARRAY:
        return found.leaves[0]
    return State(traversals.unflatten_mapping(found.flat()), _copy=False)


def states_of(groups: tuple[FlatState[Any], ...]) -> tuple[Any, ...]:
    """Flat states as nested ones."""
    return tuple(map(_state_of, groups))


def _state_of(group: FlatState[Any]) -> Any:
    if len(group) == 1 and group.paths[0] == ():  # a lone Variable or array is its own state
        return group.leaves[0]
    return State(traversals.unflatten_mapping(group), _copy=False)


def split(node: Any, *filters: Filter, graph: bool | None = None) -> Any:
    """Splits a model into its structure and its leaves.

    Args:
        node: a Module, any other node, or a pytree of them.
        *filters: how to divide the leaves; each goes to the first filter that matches it. Without filters there is one
            State.
        graph: True allows shared references, False demands a tree. None: the current mode.

    Returns:
        A GraphDef and one State per filter.

    Raises:
        ValueError: a leaf is matched by no filter, or the object is not a tree and `graph` is False.

    Example:
        >>> from sonde import nnx
        >>> model = nnx.Dict(w=nnx.Param(1.0), mean=nnx.BatchStat(0.0))
        >>> graphdef, params, rest = nnx.split(model, nnx.Param, ...)
        >>> nnx.merge(graphdef, params, rest).w is model.w
        True
    """
    walked = walk(node, graph=resolve(graph), verb="split")
    if not filters:
        return GraphDef(walked.definition, origin_of(node)), _nested(walked)
    return (GraphDef(walked.definition, origin_of(node)), *states_of(split_flat(walked.flat(), filters)))


def state(node: Any, *filters: Filter, graph: bool | None = None) -> Any:
    """The leaves of a model as a State; with several filters, a tuple of States.

    Args:
        node: a Module, any other node, or a pytree of them.
        *filters: which leaves; what no filter matches is left out.
        graph: True allows shared references, False demands a tree. None: the current mode.

    Example:
        >>> from sonde import nnx
        >>> model = nnx.Dict(w=nnx.Param(1.0), mean=nnx.BatchStat(0.0))
        >>> list(nnx.state(model, nnx.BatchStat))
        ['mean']
    """
    walked = walk(node, graph=resolve(graph), verb="state")
    if not filters:
        return _nested(walked)
    states = states_of(select_flat(walked.flat(), filters))
    return states[0] if len(states) == 1 else states


variables = state


def graphdef(node: Any, /, *, graph: bool | None = None) -> GraphDef[Any]:
    """The structure of a model: the first part of what `split` returns."""
    return GraphDef(walk(node, graph=resolve(graph), verb="graphdef").definition, origin_of(node))


def unpack(node: Any, *filters: Filter, graph: bool | None = None) -> Any:
    """The leaves of a model as GraphStates, each of which knows the structure; see `split`.

    Returns:
        One GraphState for zero or one filter, else a tuple.
    """
    graphdef, *states = split(node, *filters, graph=graph)
    made = tuple(GraphState(graphdef, one) for one in states)
    return made[0] if len(made) == 1 else made


def flatten(
    node: Any,
    /,
    *,
    with_paths: bool = True,
    ref_index: Any = None,
    ref_outer_index: Any = None,
    graph: bool | None = None,
) -> tuple[GraphDef[Any], Any]:
    """Flattens a model into a GraphDef and its leaves.

    Args:
        node: a Module, any other node, or a pytree of them.
        with_paths: whether to return a FlatState, else a list.
        ref_index: a `RefMap` with the numbers of objects met before, to flatten several that share references; new
            objects are added to it.
        ref_outer_index: a `RefMap` of numbers; an object that is in it gets its number from there.
        graph: True allows shared references, False demands a tree. None: the current mode.
    """
    from sonde.nnx.structure.contexts import numbered_as, objects_of

    seen: dict[int, int] = {} if ref_index is None else ref_index.numbers()
    walked = walk(node, graph=resolve(graph), verb="flatten", seen=seen)
    if ref_index is not None:
        for index, obj in objects_of([walked], seen).items():
            ref_index[obj] = index
    definition = walked.definition
    if ref_outer_index is not None:
        definition = numbered_as(definition, seen, ref_outer_index.numbers())
    if with_paths:
        flat = FlatState(walked.flat(), sort=True)  # the fields of named tuples and dataclasses have another order
        return GraphDef(definition, origin_of(node)), flat
    return GraphDef(definition, origin_of(node)), walked.leaves


# -------------------------------------------------------------------------------------------- putting together


def unflatten(
    graphdef: GraphDef[Any],
    state: Any,
    /,
    *,
    index_ref: dict[int, Any] | None = None,
    outer_index_outer_ref: Mapping[int, Any] | None = None,
    copy_variables: bool = False,
    recreate_variables: bool = True,
) -> Any:
    """The inverse of `flatten`.

    Args:
        graphdef: the structure.
        state: a State, a FlatState, or the list of leaves.
        index_ref: objects by number, to unflatten several that share references; new objects are added to it.
        outer_index_outer_ref: objects by number, to change in place instead of making new ones.
        copy_variables: whether to copy the Variables.
        recreate_variables: whether a bare value in place of a Variable is wrapped in a new one.
    """
    if outer_index_outer_ref is not None:
        from sonde.nnx.structure.contexts import restore

        known = {} if index_ref is None else index_ref
        nested = traversals.unflatten_mapping(state) if isinstance(state, FlatState) else state
        return restore(graphdef.definition, iter(collect(graphdef.definition, nested)), known, outer_index_outer_ref)
    leaves = None
    if isinstance(state, (list, tuple)):
        if len(state) != graphdef.num_leaves:
            raise ValueError(
                f"nnx.unflatten: the graphdef has {graphdef.num_leaves} leaves, but {len(state)} were given."
            )
        leaves = list(state)
    elif copy_variables:
        leaves = collect(graphdef.definition, state)
    if copy_variables:
        leaves = copied(leaves or ())
    built = build(
        graphdef.definition,
        leaves,
        state=state,
        known=index_ref,
        recreate=recreate_variables,
        prototypes=graphdef._prototypes,
        remember=index_ref is not None or graphdef._has_references(),
    )
    carry_below(graphdef.origin, built)
    return built


def merge(graphdef_or_graphstate: Any, /, *states: Any, copy: bool = False, recreate_variables: bool = True) -> Any:
    """The inverse of `split`: a new object with the structure of a GraphDef and the leaves of States.

    Args:
        graphdef_or_graphstate: a GraphDef, or a GraphState, which contains one.
        *states: the leaves; each exactly once.
        copy: whether to copy the Variables; else they become part of the new object as they are.
        recreate_variables: whether a bare value in place of a Variable is wrapped in a new one.

    Raises:
        ValueError: the leaves do not fit the structure.
    """
    if isinstance(graphdef_or_graphstate, GraphState):
        states = (graphdef_or_graphstate, *states)
        graphdef: GraphDef[Any] = graphdef_or_graphstate._graphdef
    elif isinstance(graphdef_or_graphstate, GraphDef):
        graphdef = graphdef_or_graphstate
    else:
        raise TypeError(f"merge takes a GraphDef or a GraphState first, got {type(graphdef_or_graphstate).__name__}.")
    if not states:
        raise TypeError("merge takes at least one State after the GraphDef.")
    states = tuple(map(state_in, states))
    if graphdef.definition[0] in (VARIABLE, ARRAY):
        one = lone_leaf(states)
    elif len(states) == 1:
        one = states[0]
    else:
        n_given = sum(len(traversals.flatten_mapping(s)) if isinstance(s, Mapping) else len(s) for s in states)
        if n_given != graphdef.num_leaves:
            collect(graphdef.definition, merge_state(*states))  # raises an error that names missing leaves, if any
            raise ValueError(
                f"nnx.merge: the graphdef has {graphdef.num_leaves} leaves, but {n_given} were given, some of "
                "them twice."
            )
        one = merge_state(*states)
    return unflatten(graphdef, one, copy_variables=copy, recreate_variables=recreate_variables)


def clone(node: A, variables: bool = True, *, arrays: bool = False, graph: bool | None = None) -> A:
    """A copy of a model: new nodes, new Variables, the same arrays.

    Args:
        node: a Module, any other node, or a pytree of them.
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
    return carry_all(node, build(walked.definition, leaves))


def _copied_array(x: Any) -> Any:
    return x.copy() if hasattr(x, "copy") and hasattr(x, "dtype") else x


def as_pure(tree: A) -> A:
    """A copy of a pytree (or model) with bare values in place of Variables; shared parts are duplicated.

    Example:
        >>> from sonde import nnx
        >>> nnx.as_pure({"w": nnx.Param(1.0)})
        {'w': 1.0}
    """

    def value_of(leaf: Any) -> Any:
        return leaf.get_value() if isinstance(leaf, Variable) else leaf

    return jax.tree.map(value_of, tree, is_leaf=lambda x: isinstance(x, Variable))


pure = as_pure
