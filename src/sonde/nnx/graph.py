"""Taking models apart and putting them together: `split`, `merge`, `state`, `update`, `clone` and related functions.

`split` gives a `GraphDef` (the structure, hashable) and States (the leaves); `merge` is the inverse. The States hold
the model's own Variables, not copies of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, Generic, TypeVar

import jax

from sonde._jax import trace_level
from sonde.core.module_index import ModuleKind, Origin, register_modules
from sonde.nnx import traversals
from sonde.nnx._kinds import ARRAY, CONTAINER, NODE, VARIABLE, kind_of
from sonde.nnx.array_references import is_reference
from sonde.nnx.building import build, collect
from sonde.nnx.definitions import count_leaves, flatten_once, has_references, show_path
from sonde.nnx.filters import Filter, PathParts
from sonde.nnx.graph_mode import resolve
from sonde.nnx.metadata import structural_hash
from sonde.nnx.module_sites import carry_all, carry_below, origin_of
from sonde.nnx.pytree import attributes
from sonde.nnx.states import FlatState, State, merge_state, select_flat, split_flat
from sonde.nnx.variable import Variable, _set_value, copied
from sonde.nnx.walking import Walk, walk

A = TypeVar("A")


class GraphDef(Generic[A]):
    """The structure of a model without its arrays: hashable, comparable, a pytree without leaves.

    Attributes:
        definition: the nested tuples that `sonde.nnx.definitions` describes.
        num_leaves: how many leaves the states must have together.
        origin: while a capture runs, the object it was made from, so that merged copies keep its place; else None.
    """

    __slots__ = ("__weakref__", "_hash", "_prototypes", "_references", "definition", "num_leaves", "origin")

    def __init__(self, definition: Any, origin: Origin | None = None):
        self.definition = definition
        self.origin = origin
        self.num_leaves = count_leaves(definition)
        self._hash: int | None = None
        self._prototypes: dict[int, dict[Any, Any]] = {}
        self._references: bool | None = None

    @property
    def nodes(self) -> list[Any]:
        """The parts of the structure, in the order of the walk; see `sonde.nnx.graph_nodes`."""
        from sonde.nnx.graph_nodes import nodes_of

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

    def __repr__(self) -> str:
        from sonde.nnx import rendering

        return rendering.text(self)

    def __treescope_repr__(self, path: Any, subtree_renderer: Any) -> Any:
        from sonde.nnx import rendering

        return rendering.treescope_of(self, path, subtree_renderer)


def _hash_of(definition: Any) -> int:
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

    def __getitem__(self, key: Any) -> Any:
        return self._state[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._state[key] = value

    def __delitem__(self, key: Any) -> None:
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
        """The entries of the state are the children: they have the paths that they have in the state."""
        values, keys = self.tree_flatten()
        return tuple(zip(map(jax.tree_util.DictKey, keys[1]), values)), keys

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[GraphDef[A], tuple[Any, ...]]]:
        """The entries of the state, and the rest."""
        keys = tuple(traversals.sorted_keys(self._state))
        return tuple(self._state[key] for key in keys), (self._graphdef, keys)

    @classmethod
    def tree_unflatten(cls, structure: tuple[GraphDef[Any], tuple[Any, ...]], children: Any) -> GraphState[Any]:
        """The inverse."""
        graphdef, keys = structure
        return cls(graphdef, State(dict(zip(keys, children))))


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
    found = walk(node, graph=resolve(graph), verb="split")
    if not filters:
        return GraphDef(found.definition, origin_of(node)), _nested(found)
    return (GraphDef(found.definition, origin_of(node)), *states_of(split_flat(found.flat(), filters)))


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
    found = walk(node, graph=resolve(graph), verb="state")
    if not filters:
        return _nested(found)
    states = states_of(select_flat(found.flat(), filters))
    return states[0] if len(states) == 1 else states


variables = state


def graphdef(node: Any, /, *, graph: bool | None = None) -> GraphDef[Any]:
    """The structure of a model: the first part of what `split` returns."""
    return GraphDef(walk(node, graph=resolve(graph), verb="graphdef").definition, origin_of(node))


def unpack(node: Any, *filters: Filter, graph: bool | None = None) -> Any:
    """The leaves of a model as GraphStates, each of which knows the structure; see `split`.

    Returns:
        One GraphState for no filter or one, else a tuple.
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
    from sonde.nnx.graph_contexts import numbered_as, objects_of

    seen: dict[int, int] = {} if ref_index is None else ref_index.numbers()
    found = walk(node, graph=resolve(graph), verb="flatten", seen=seen)
    if ref_index is not None:
        for index, obj in objects_of([found], seen).items():
            ref_index[obj] = index
    definition = found.definition
    if ref_outer_index is not None:
        definition = numbered_as(definition, seen, ref_outer_index.numbers())
    if with_paths:
        flat = FlatState(found.flat(), sort=True)  # the fields of named tuples and dataclasses have another order
        return GraphDef(definition, origin_of(node)), flat
    return GraphDef(definition, origin_of(node)), found.leaves


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
        outer_index_outer_ref: objects by number, which are changed instead of making new ones.
        copy_variables: whether to copy the Variables.
        recreate_variables: whether to put a Variable around a bare value in place of one.
    """
    if outer_index_outer_ref is not None:
        from sonde.nnx.graph_contexts import restore

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
        graphdef_or_graphstate: a GraphDef, or a GraphState, which brings its own.
        *states: the leaves; each exactly once.
        copy: whether to copy the Variables; else they become part of the new object as they are.
        recreate_variables: whether to put a Variable around a bare value in place of one.

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
    states = tuple(s._state if isinstance(s, GraphState) else s for s in states)
    if graphdef.definition[0] in (VARIABLE, ARRAY):
        one = _lone(states)
    elif len(states) == 1:
        one = states[0]
    else:
        given = sum(len(traversals.flatten_mapping(s)) if isinstance(s, Mapping) else len(s) for s in states)
        if given != graphdef.num_leaves:
            collect(graphdef.definition, merge_state(*states))  # names what is missing, if something is
            raise ValueError(
                f"nnx.merge: the graphdef has {graphdef.num_leaves} leaves, but {given} were given, some of them twice."
            )
        one = merge_state(*states)
    return unflatten(graphdef, one, copy_variables=copy, recreate_variables=recreate_variables)


def _lone(states: tuple[Any, ...]) -> Any:
    """The leaf among the states of a lone Variable or array; the other states are empty."""
    leaves = [s for s in states if not isinstance(s, (Mapping, FlatState))]
    leaves += [leaf for s in states if isinstance(s, FlatState) for leaf in s.leaves]
    if len(leaves) != 1:
        raise ValueError(f"the states of a lone Variable or array hold one leaf, but {len(leaves)} were given.")
    return leaves[0]


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
    found = walk(node, graph=resolve(graph), verb="clone")
    leaves = found.leaves
    if variables:
        leaves = copied(leaves)
    if arrays:
        leaves = jax.tree.map(_copied_array, leaves)
    return carry_all(node, build(found.definition, leaves))


def _copied_array(x: Any) -> Any:
    return x.copy() if hasattr(x, "copy") and hasattr(x, "dtype") else x


# --------------------------------------------------------------------------------------------------- changing


def update(node: Any, state: Any, /, *states: Any) -> None:
    """Puts the leaves of States into a model, in place.

    A Variable takes over the value and metadata of the Variable (or the bare value) at its path; other leaves are
    replaced. Nothing is changed if something does not fit.

    Args:
        node: the object to change.
        state: a State, or nested dicts.
        *states: more of them.

    Raises:
        ValueError: a path leads into something that cannot be changed.
        TraceContextError: a Variable was made at another trace level.
    """
    if isinstance(node, Variable):
        return _write(node, _lone((state, *states)) if states else state)
    if states:
        state = merge_state(*(s._state if isinstance(s, GraphState) else s for s in (state, *states)))
    elif isinstance(state, GraphState):
        state = state._state
    if isinstance(state, FlatState):
        state = state.to_nested_state()
    if not isinstance(state, Mapping):
        raise TypeError(f"update takes a State or nested dicts, got {type(state).__name__}.")
    writes: list[tuple[Variable[Any], Any]] = []
    sets: list[tuple[Any, Any, Any]] = []
    stores: list[tuple[Any, Any]] = []
    _plan_update(node, state, (), writes, sets, stores)
    level = trace_level()
    for variable, _ in writes:
        if variable._level is not level:
            variable._check_level()
    for parent, key, value in sets:
        _set_child(parent, key, value)
    for reference, value in stores:
        reference[...] = value
    for variable, value in writes:
        _write(variable, value)
    return None


def _write(variable: Variable[Any], value: Any) -> None:
    if not isinstance(value, Variable):
        variable.set_raw_value(value)
    elif variable._metadata is value._metadata and not value._metadata.by_reference:
        _set_value(variable, value._raw_value)  # the common case of `update_from_state`
    else:
        variable.update_from_state(value)


def _plan_update(
    node: Any, mapping: Any, path: PathParts, writes: list[Any], sets: list[Any], stores: list[Any]
) -> None:
    """Notes what an update writes: into Variables, in the places of other leaves, and into array references."""
    children = _children(node, path)
    for key, value in (mapping.raw_mapping if isinstance(mapping, State) else mapping).items():
        child = children.get(key, _NOTHING)
        if isinstance(child, Variable):
            writes.append((child, value))
        elif is_reference(child):
            if child is not value:
                stores.append((child, value))
        elif isinstance(value, Mapping) and child is not None and kind_of(child) in (NODE, CONTAINER):
            _plan_update(child, value, (*path, key), writes, sets, stores)
        else:
            if not can_set_child(node):
                raise ValueError(
                    f"Cannot update {show_path((*path, key))}: its parent is a {type(node).__name__}, which cannot be "
                    f"changed in place. Hold the array in a Variable, or replace the whole {type(node).__name__}."
                )
            sets.append((node, key, value._mapping if isinstance(value, State) else value))


_NOTHING: Any = type("_Nothing", (), {})()


def _children(node: Any, path: PathParts) -> Mapping[Any, Any]:
    """What is right below a node or container, by key."""
    kind = kind_of(node)
    if kind == NODE:
        if node._only_attributes:
            return attributes(node)
        layout, data, static = node._structure()
        return dict(zip(layout.data_then_static, (*data, *static)))
    if kind == CONTAINER and node is not None:
        keys, children, _ = flatten_once(node)
        return dict(zip(keys, children))
    raise ValueError(f"Cannot look into {show_path(path)}: a {type(node).__name__} has no entries.")


def can_set_child(node: Any) -> bool:
    """Whether entries of a node or container can be replaced in place."""
    return kind_of(node) == NODE or isinstance(node, (list, dict, State))


def _set_child(node: Any, key: Any, value: Any) -> None:
    if kind_of(node) == NODE:
        node._set_child(key, value)
    else:
        node[key] = value


def set_metadata(node: Any, /, *, only: Filter = Variable, **metadata: Any) -> None:
    """Sets metadata of all Variables of a model, in place.

    Args:
        node: a Module, any other node, or a pytree of them.
        only: which Variables.
        **metadata: the entries.
    """
    found = walk(node, graph=True, verb="set_metadata")
    (chosen,) = select_flat(found.flat(), (only,))
    for variable in chosen.leaves:
        if isinstance(variable, Variable):
            variable.set_metadata(**metadata)


# ---------------------------------------------------------------------------------------------------- calling


class ApplyCaller:
    """What `call` returns: attributes and items lead into the object, a call runs it.

    The result of a call is a pair of the output and the new (GraphDef, State).
    """

    def __init__(self, run: Callable[..., Any], path: tuple[tuple[str, Any], ...] = ()):
        self._run = run
        self._path = path

    def __getattr__(self, name: str) -> ApplyCaller:
        if name.startswith("__"):
            raise AttributeError(name)
        return ApplyCaller(self._run, (*self._path, ("attribute", name)))

    def __getitem__(self, key: Any) -> ApplyCaller:
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
        target = node = merge(graphdef, state, copy=True)
        for how, key in path:
            target = getattr(target, key) if how == "attribute" else target[key]
        out = target(*args, **kwargs)
        return out, split(node)

    return ApplyCaller(run)


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
