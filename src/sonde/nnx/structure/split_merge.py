"""`GraphDef`, the structure of a model, and taking models apart and putting them together: `split`, `merge`, `state`.

`split` gives a `GraphDef` (the structure, hashable) and States (the leaves); `merge` is the inverse. The States hold
the model's own Variables, not copies of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Generic, TypeVar, overload

import jax

from sonde.core import ModuleKind, Origin, register_modules
from sonde.nnx.modules.module_sites import mark_copies_of_origin, origin_of
from sonde.nnx.rendering import Rendered, Writer
from sonde.nnx.states import traversals
from sonde.nnx.states.filters import Filter
from sonde.nnx.states.state import FlatState, State, merge_state, select_flat, split_flat, states_of
from sonde.nnx.structure.build import build, collect, restore
from sonde.nnx.structure.definitions import Definition, count_leaves, has_references, numbered_as
from sonde.nnx.structure.identities import RefMap
from sonde.nnx.structure.mode import resolve
from sonde.nnx.structure.nodes import nodes_of
from sonde.nnx.structure.value_kinds import ARRAY, CONTAINER, NODE, VARIABLE
from sonde.nnx.structure.walk import objects_of, walk
from sonde.nnx.variable.metadata import structural_hash
from sonde.nnx.variable.variable import copied

A = TypeVar("A")


class GraphDef(Rendered, Generic[A]):
    """The structure of a model without its arrays: hashable, comparable, a pytree without leaves.

    Attributes:
        definition: The nested tuples that `sonde.nnx.structure.definitions` describes.
        num_leaves: How many leaves the states must have together.
        origin: While a capture runs, the object it was made from, so that merged copies keep its place; else None.
    """

    __slots__ = ("__weakref__", "_hash", "_prototypes", "_references", "definition", "num_leaves", "origin")

    def __init__(self, definition: Definition, origin: Origin | None = None):
        self.definition = definition
        self.origin = origin
        self.num_leaves = count_leaves(definition)
        self._hash: int | None = None
        self._prototypes: dict[int, dict[Any, Any]] = {}
        self._references: bool | None = None

    @property
    def nodes(self) -> list[Any]:
        """The parts of the structure, in the order of the walk; see `sonde.nnx.structure.nodes`."""
        return nodes_of(self.definition)

    @property
    def type(self) -> type | None:
        """The class of the object; None for a lone array."""
        return self.definition[1] if self.definition[0] in (NODE, CONTAINER, VARIABLE) else None

    def _has_references(self) -> bool:
        if self._references is None:
            self._references = has_references(self.definition)
        return self._references

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, GraphDef) and self.definition == other.definition

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = _hash_of(self.definition)
        return self._hash

    def __reduce__(self) -> Any:
        return GraphDef, (self.definition,)

    def apply(self, state: Mapping[Any, Any], *states: Mapping[Any, Any]) -> ApplyCaller:
        """The same as `nnx.call((graphdef, merged states))`."""
        return call((self, merge_state(state, *states)))

    def _nnx_text(self, writer: Writer, depth: int) -> str:
        del writer, depth
        return f"GraphDef({getattr(self.type, '__name__', None)}, num_leaves={self.num_leaves})"

    def _nnx_attributes(self) -> Mapping[str, object]:
        return {"type": self.type, "num_leaves": self.num_leaves}


def _hash_of(definition: Definition) -> int:
    try:
        return hash(definition)
    except TypeError:  # a static attribute that cannot be hashed, such as a list
        if isinstance(definition, tuple):
            return hash(tuple(map(_hash_of, definition)))
        return structural_hash(definition)


jax.tree_util.register_static(GraphDef)
register_modules(GraphDef, ModuleKind(lambda _: (), origin=lambda g: g.origin, is_root=lambda _: False))


@jax.tree_util.register_pytree_with_keys_class
class GraphState(MutableMapping[Any, Any], Generic[A]):
    """A State that carries its GraphDef with it; what `unpack` returns."""

    def __init__(self, graphdef: GraphDef[A], state: State[Any, Any]):
        self._graphdef = graphdef
        self._state = state

    def __getitem__(self, key: Hashable) -> Any:
        return self._state[key]

    def __setitem__(self, key: Hashable, value: Any) -> None:
        self._state[key] = value

    def __delitem__(self, key: Hashable) -> None:
        del self._state[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_state", "_graphdef"):  # not yet set, as while unpickling
            raise AttributeError(name)
        return getattr(self._state, name)

    def __repr__(self) -> str:
        return f"GraphState({self._graphdef!r}, {self._state!r})"

    def tree_flatten_with_keys(self) -> Any:
        """The entries of the state are the children, with the same paths as in the state."""
        values, keys = self.tree_flatten()
        return tuple(zip(map(jax.tree_util.DictKey, keys[1]), values)), keys

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[GraphDef[A], tuple[Any, ...]]]:
        """The entries of the state, and the rest."""
        keys = tuple(traversals.sorted_keys(self._state))
        return tuple(self._state[key] for key in keys), (self._graphdef, keys)

    @classmethod
    def tree_unflatten(
        cls, structure: tuple[GraphDef[Any], tuple[Any, ...]], children: Iterable[Any]
    ) -> GraphState[Any]:
        """The inverse."""
        graphdef, keys = structure
        return cls(graphdef, State(dict(zip(keys, children))))


def state_in(given: object) -> Any:
    """The State in a GraphState; anything else as it is."""
    return given._state if isinstance(given, GraphState) else given


def lone_leaf(states: tuple[Any, ...]) -> Any:
    """The leaf among the states of a lone Variable or array; the other states are empty."""
    leaves = [s for s in states if not isinstance(s, (Mapping, FlatState))]
    leaves += [leaf for s in states if isinstance(s, FlatState) for leaf in s.leaves]
    if len(leaves) != 1:
        raise ValueError(f"the states of a lone Variable or array hold one leaf, but {len(leaves)} were given.")
    return leaves[0]


# ------------------------------------------------------------------------------------------------ taking apart


@overload
def split(node: A, *, graph: bool | None = None) -> tuple[GraphDef[A], Any]: ...
@overload
def split(node: A, only: Filter, /, *, graph: bool | None = None) -> tuple[GraphDef[A], Any]: ...
@overload
def split(
    node: A, first: Filter, second: Filter, /, *filters: Filter, graph: bool | None = None
) -> tuple[GraphDef[A], Any, *tuple[Any, ...]]: ...
def split(node: object, *filters: Filter, graph: bool | None = None) -> Any:
    """Splits a model into its structure and its leaves.

    Args:
        node: A Module, any other node, or a pytree of them.
        *filters: How to divide the leaves; each goes to the first filter that matches it. Without filters there is one
            State.
        graph: True allows shared references, False demands a tree. None: the current mode.

    Returns:
        A GraphDef and one State per filter.

    Raises:
        ValueError: A leaf is matched by no filter, or the object is not a tree and `graph` is False.

    Example:
        >>> from sonde import nnx
        >>> model = nnx.Dict(w=nnx.Param(1.0), mean=nnx.BatchStat(0.0))
        >>> graphdef, params, rest = nnx.split(model, nnx.Param, ...)
        >>> nnx.merge(graphdef, params, rest).w is model.w
        True
    """
    walked = walk(node, graph=resolve(graph), verb="split")
    if not filters:
        return GraphDef(walked.definition, origin_of(node)), walked.state()
    return (GraphDef(walked.definition, origin_of(node)), *states_of(split_flat(walked.flat(), filters)))


def state(node: object, *filters: Filter, graph: bool | None = None) -> Any:
    """The leaves of a model as a State; with several filters, a tuple of States.

    Args:
        node: A Module, any other node, or a pytree of them.
        *filters: Which leaves; what no filter matches is left out.
        graph: True allows shared references, False demands a tree. None: the current mode.

    Example:
        >>> from sonde import nnx
        >>> model = nnx.Dict(w=nnx.Param(1.0), mean=nnx.BatchStat(0.0))
        >>> list(nnx.state(model, nnx.BatchStat))
        ['mean']
    """
    walked = walk(node, graph=resolve(graph), verb="state")
    if not filters:
        return walked.state()
    states = states_of(select_flat(walked.flat(), filters))
    return states[0] if len(states) == 1 else states


variables = state


def graphdef(node: A, /, *, graph: bool | None = None) -> GraphDef[A]:
    """The structure of a model: the first part of what `split` returns."""
    return GraphDef(walk(node, graph=resolve(graph), verb="graphdef").definition, origin_of(node))


def unpack(node: object, *filters: Filter, graph: bool | None = None) -> Any:
    """The leaves of a model as GraphStates, each of which knows the structure; see `split`.

    Returns:
        One GraphState for zero or one filter, else a tuple.
    """
    graphdef, *states = split(node, *filters, graph=graph)
    made = tuple(GraphState(graphdef, state) for state in states)
    return made[0] if len(made) == 1 else made


def flatten(
    node: A,
    /,
    *,
    with_paths: bool = True,
    ref_index: RefMap | None = None,
    ref_outer_index: RefMap | None = None,
    graph: bool | None = None,
) -> tuple[GraphDef[A], Any]:
    """Flattens a model into a GraphDef and its leaves.

    Args:
        node: A Module, any other node, or a pytree of them.
        with_paths: Whether to return a FlatState, else a list.
        ref_index: A `RefMap` with the numbers of objects visited before, to flatten several that share references; new
            objects are added to it.
        ref_outer_index: A `RefMap` of numbers; an object that is in it gets its number from there.
        graph: True allows shared references, False demands a tree. None: the current mode.
    """
    numbers: dict[int, int] = {} if ref_index is None else ref_index.numbers()
    walked = walk(node, graph=resolve(graph), verb="flatten", seen=numbers)
    if ref_index is not None:
        for index, obj in objects_of([walked], numbers).items():
            ref_index[obj] = index
    definition = walked.definition
    if ref_outer_index is not None:
        definition = numbered_as(definition, numbers, ref_outer_index.numbers())
    if with_paths:
        flat = FlatState(walked.flat(), sort=True)  # the fields of named tuples and dataclasses have another order
        return GraphDef(definition, origin_of(node)), flat
    return GraphDef(definition, origin_of(node)), walked.leaves


# -------------------------------------------------------------------------------------------- putting together


def unflatten(
    graphdef: GraphDef[Any],
    state: object,
    /,
    *,
    index_ref: dict[int, Any] | None = None,
    outer_index_outer_ref: Mapping[int, Any] | None = None,
    copy_variables: bool = False,
    recreate_variables: bool = True,
) -> Any:
    """The inverse of `flatten`.

    Args:
        graphdef: The structure.
        state: A State, a FlatState, or the list of leaves.
        index_ref: Objects by number, to unflatten several that share references; new objects are added to it.
        outer_index_outer_ref: Objects by number, to change in place instead of making new ones.
        copy_variables: Whether to copy the Variables.
        recreate_variables: Whether a bare value in place of a Variable is wrapped in a new one.
    """
    if outer_index_outer_ref is not None:
        objects = {} if index_ref is None else index_ref
        nested = traversals.unflatten_mapping(state) if isinstance(state, FlatState) else state
        return restore(graphdef.definition, iter(collect(graphdef.definition, nested)), objects, outer_index_outer_ref)
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
    mark_copies_of_origin(graphdef.origin, built)
    return built


def merge(
    graphdef_or_graphstate: GraphDef[A] | GraphState[A],
    /,
    *states: Any,
    copy: bool = False,
    recreate_variables: bool = True,
) -> A:
    """The inverse of `split`: a new object with the structure of a GraphDef and the leaves of States.

    Args:
        graphdef_or_graphstate: A GraphDef, or a GraphState, which contains one.
        *states: The leaves; each exactly once.
        copy: Whether to copy the Variables; else they become part of the new object as they are.
        recreate_variables: Whether a bare value in place of a Variable is wrapped in a new one.

    Raises:
        ValueError: The leaves do not fit the structure.
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
        merged = lone_leaf(states)
    elif len(states) == 1:
        merged = states[0]
    else:
        n_given = sum(len(traversals.flatten_mapping(s)) if isinstance(s, Mapping) else len(s) for s in states)
        if n_given != graphdef.num_leaves:
            collect(graphdef.definition, merge_state(*states))  # raises an error that names missing leaves, if any
            raise ValueError(
                f"nnx.merge: the graphdef has {graphdef.num_leaves} leaves, but {n_given} were given, some of "
                "them twice."
            )
        merged = merge_state(*states)
    return unflatten(graphdef, merged, copy_variables=copy, recreate_variables=recreate_variables)


# ------------------------------------------------------------------------------------------ calling methods


class ApplyCaller:
    """What `call` returns: attributes and items select a part of the object, and calling it runs that part.

    The result of a call is a pair of the output and the new (GraphDef, State).
    """

    def __init__(self, run: Callable[..., Any], path: tuple[tuple[str, Any], ...] = ()):
        self._run = run
        self._path = path

    def __getattr__(self, name: str) -> ApplyCaller:
        if name.startswith("__"):
            raise AttributeError(name)
        return ApplyCaller(self._run, (*self._path, ("attribute", name)))

    def __getitem__(self, key: Hashable) -> ApplyCaller:
        return ApplyCaller(self._run, (*self._path, ("item", key)))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the method; returns its output and the new (GraphDef, State)."""
        return self._run(self._path, *args, **kwargs)


def call(graphdef_state: tuple[GraphDef[Any], Any], /) -> ApplyCaller:
    """Calls methods of a model that is given as (GraphDef, State), as pure functions.

    Example:
        >>> from sonde import nnx
        >>> class Counter(nnx.Module):
        ...     def __init__(self):
        ...         self.n = nnx.Variable(0)
        ...     def add(self, x):
        ...         self.n.set_value(self.n.get_value() + x)
        ...         return self.n.get_value()
        >>> out, (graphdef, state) = nnx.call(nnx.split(Counter())).add(2)
        >>> out
        2
    """

    def run(path: tuple[tuple[str, Any], ...], *args: Any, **kwargs: Any) -> Any:
        graphdef, state = graphdef_state
        # A copy, because the call must not change the Variables of the given state.
        target = node = merge(graphdef, state, copy=True)
        for how, key in path:
            target = getattr(target, key) if how == "attribute" else target[key]
        out = target(*args, **kwargs)
        return out, split(node)

    return ApplyCaller(run)
