"""Objects in a pytree as states that JAX can map over: `to_tree`, `from_tree`, and transforms built on them.

`to_tree` puts a `NodeStates` in place of every object: its leaves are the values of the object's Variables and
arrays. An object that occurs again becomes a NodeStates without leaves, which refers to the first. `from_tree` is the
inverse. Under the name of an update context it returns the objects that `to_tree` was given (`contexts`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

import jax

from sonde.nnx.structure.contexts import MergeContext, SplitContext, merge_context, split_context, update_context
from sonde.nnx.structure.definitions import Path
from sonde.nnx.structure.split_merge import GraphDef
from sonde.nnx.structure.value_kinds import is_object
from sonde.nnx.structure.walk import walk
from sonde.nnx.variable.variable import Variable

T = TypeVar("T")

_MISSING: Any = type("Missing", (), {})


@jax.tree_util.register_pytree_with_keys_class
class NodeStates:
    """An object as a structure and states.

    Attributes:
        states: The states, one per filter of the split.
        metadata: Anything hashable.
    """

    def __init__(self, graphdef: GraphDef[Any] | None, states: tuple[Any, ...], metadata: Hashable = None):
        self._graphdef = graphdef
        self.states = states
        self.metadata = metadata

    @classmethod
    def from_split(
        cls, graphdef: GraphDef[Any] | None, state: Any, /, *states: Any, metadata: Hashable = None
    ) -> NodeStates:
        """Makes one from what `nnx.split` returned."""
        return cls(graphdef, (state, *states), metadata)

    @classmethod
    def from_states(cls, state: Any, /, *states: Any) -> NodeStates:
        """Makes one from states alone."""
        return cls(None, (state, *states))

    @classmethod
    def from_prefixes(cls, prefixes: Iterable[Any], /, *, metadata: Hashable = None) -> NodeStates:
        """Makes one with one value per state, for `in_axes` and the like of JAX's transforms."""
        return cls(None, tuple(prefixes), metadata)

    @property
    def graphdef(self) -> GraphDef[Any]:
        """The structure.

        Raises:
            ValueError: It was made of states or prefixes alone.
        """
        if self._graphdef is None:
            raise ValueError("This NodeStates was made of states or prefixes alone: it has no graphdef.")
        return self._graphdef

    @property
    def state(self) -> Any:
        """The only state.

        Raises:
            ValueError: There are several.
        """
        if len(self.states) != 1:
            raise ValueError(f"This NodeStates has {len(self.states)} states: ask for `states`.")
        return self.states[0]

    def tree_flatten_with_keys(self) -> Any:
        """The structure is a child too, so that prefixes fit both forms."""
        states = (jax.tree_util.GetAttrKey("states"), self.states)
        return ((jax.tree_util.GetAttrKey("graphdef"), self._graphdef), states), self.metadata

    @classmethod
    def tree_unflatten(cls, metadata: Hashable, children: tuple[GraphDef[Any] | None, tuple[Any, ...]]) -> NodeStates:
        """The inverse."""
        graphdef, states = children
        return cls(graphdef, states, metadata)

    def __repr__(self) -> str:
        return f"NodeStates({self._graphdef!r}, {self.states!r}, {self.metadata!r})"


def is_node_states(value: object) -> bool:
    """Whether a value is what `to_tree` puts in place of an object."""
    return isinstance(value, NodeStates)


def _split(context: SplitContext, path: Path, prefix: object, value: object) -> Any:
    return NodeStates.from_split(*context.split(value)) if is_object(value) else value


def _merge(context: MergeContext, path: Path, prefix: Any, value: Any) -> Any:
    return context.merge(value.graphdef, *value.states) if is_node_states(value) else value


def to_tree(
    tree: object,
    /,
    *,
    prefix: object = _MISSING,
    split_fn: Callable[[SplitContext, Any, Any, Any], Any] = _split,
    map_non_graph_nodes: bool = False,
    ctxtag: Hashable = None,
    check_aliasing: bool = True,
) -> Any:
    """A pytree with a `NodeStates` in place of every object.

    Args:
        tree: Any pytree with Modules, Variables and the like in it.
        prefix: A tree prefix: each value applies to everything below it and is passed to `split_fn`.
        split_fn: A function of (context, path, prefix, object) that returns the replacement for the object. The
            context splits several objects as one graph.
        map_non_graph_nodes: Whether `split_fn` is also called for leaves that are not objects.
        ctxtag: The name of an open `nnx.update_context`.
        check_aliasing: Whether a Variable that is visited under two different values of the prefix is an error.

    Raises:
        ValueError: A shared Variable has two prefixes, or no update context of that name is open.

    Example:
        >>> import jax
        >>> from sonde import nnx
        >>> model = nnx.Dict(w=nnx.Param(1.0))
        >>> jax.tree.leaves(nnx.to_tree((model, model, 2.0)))
        [1.0, 2.0]
    """
    paths_and_leaves, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_object)
    prefixes = _spread(prefix, tree, is_object) if prefix is not _MISSING else [prefix] * len(paths_and_leaves)
    if prefix is not _MISSING and check_aliasing:
        _check_aliasing(paths_and_leaves, prefixes)
    with split_context(ctxtag) as context:
        made = [
            split_fn(context, path, p, x) if map_non_graph_nodes or is_object(x) else x
            for (path, x), p in zip(paths_and_leaves, prefixes)
        ]
    return structure.unflatten(made)


def from_tree(
    tree: object,
    /,
    *,
    prefix: object = _MISSING,
    merge_fn: Callable[[MergeContext, Any, Any, Any], Any] = _merge,
    is_node_leaf: Callable[[Any], bool] = is_node_states,
    is_leaf: Callable[[Any], bool] = is_node_states,
    map_non_graph_nodes: bool = False,
    is_inner: bool | None = None,
    ctxtag: Hashable = None,
) -> Any:
    """The inverse of `to_tree`: shared references are shared again.

    Args:
        tree: What `to_tree` returned.
        prefix: A tree prefix: each value applies to everything below it and is passed to `merge_fn`.
        merge_fn: A function of (context, path, prefix, leaf) that makes the object.
        is_node_leaf: Which leaves `merge_fn` is called for.
        is_leaf: What counts as a leaf.
        map_non_graph_nodes: Whether `merge_fn` is called for all leaves.
        is_inner: In an update context, True for copies inside the transform, False for the objects outside.
        ctxtag: The name of an open `nnx.update_context`.

    Raises:
        ValueError: `ctxtag` without `is_inner`, or no update context of that name is open.
    """
    if ctxtag is not None and is_inner is None:
        raise ValueError(f"from_tree(ctxtag={ctxtag!r}) needs is_inner: True inside the transform, False outside.")
    paths_and_leaves, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)
    prefixes = _spread(prefix, tree, is_leaf) if prefix is not _MISSING else [prefix] * len(paths_and_leaves)
    with merge_context(ctxtag, None if ctxtag is None else is_inner) as context:
        made = [
            merge_fn(context, path, p, x) if map_non_graph_nodes or is_node_leaf(x) else x
            for (path, x), p in zip(paths_and_leaves, prefixes)
        ]
    return structure.unflatten(made)


def _spread(prefix: object, tree: object, is_leaf: Callable[[Any], bool]) -> list[Any]:
    """The value of a prefix for every leaf; None is a value."""
    values: list[Any] = []

    def give_to_part(value: object, part: object) -> None:
        values.extend([value] * len(jax.tree.leaves(part, is_leaf=is_leaf)))

    jax.tree.map(give_to_part, prefix, tree, is_leaf=lambda p: p is None or hasattr(p, "map_prefix"))
    return values


def _check_aliasing(paths_and_leaves: Iterable[tuple[Any, Any]], prefixes: Iterable[Any]) -> None:
    first_prefixes: dict[int, tuple[Any, str]] = {}
    walks = []  # keeps the Variables alive while their ids are in use
    for (path, value), prefix in zip(paths_and_leaves, prefixes):
        if not is_object(value):
            continue
        walked = walk(value, graph=True, verb="to_tree")
        walks.append(walked)
        for below, leaf in walked.flat():
            if not isinstance(leaf, Variable):
                continue
            # By name and not by class: `StateAxes` is in a layer above this one.
            own = prefix.map_prefix(below, leaf) if hasattr(prefix, "map_prefix") else prefix
            name = jax.tree_util.keystr(path) + "".join(f".{key}" for key in below)
            before, first = first_prefixes.setdefault(id(leaf), (own, name))
            if before != own:
                raise ValueError(
                    f"to_tree: the {type(leaf).__name__} at {first} is also at {name}, but the prefix has "
                    f"{before!r} for the first and {own!r} for the second. Give both the same value."
                )


def clear_non_graph_nodes(tree: T) -> T:
    """A pytree with None in place of everything that is not an object."""
    return jax.tree.map(lambda x: x if is_object(x) else None, tree, is_leaf=is_object)


def split_inputs(f: Callable[..., Any] | None = None, *, ctxtag: Hashable = "split_merge_inputs") -> Any:
    """Calls a transformed function with objects: arguments go through `to_tree`, results through `from_tree`.

    The function must come from `merge_inputs`, with any JAX transform around it, so that it returns the pair
    (arguments, results).

    Args:
        f: The function; without it, a decorator.
        ctxtag: The name of the update context, the same in `merge_inputs`.

    Example:
        >>> import jax
        >>> from sonde import nnx
        >>> from sonde.nnx.transforms import general
        >>> @general.split_inputs
        ... @jax.jit
        ... @general.merge_inputs
        ... def double(model):
        ...     model.w[...] *= 2
        >>> model = nnx.Dict(w=nnx.Param(3.0))
        >>> double(model)
        >>> print(model.w[...])
        6.0
    """
    if f is None:
        return functools.partial(split_inputs, ctxtag=ctxtag)

    @functools.wraps(f)
    def outside(*args: Any) -> Any:
        with update_context(ctxtag):
            _, out = from_tree(f(*to_tree(args, ctxtag=ctxtag)), ctxtag=ctxtag, is_inner=False)
        return out

    return outside


def merge_inputs(f: Callable[..., Any] | None = None, *, ctxtag: Hashable = "split_merge_inputs") -> Any:
    """The counterpart of `split_inputs` inside the transform: makes a function of trees from a function of objects."""
    if f is None:
        return functools.partial(merge_inputs, ctxtag=ctxtag)

    @functools.wraps(f)
    def inside(*trees: Any) -> Any:
        args = from_tree(trees, ctxtag=ctxtag, is_inner=True)
        out = f(*args)
        return to_tree((clear_non_graph_nodes(args), out), ctxtag=ctxtag)

    return inside
