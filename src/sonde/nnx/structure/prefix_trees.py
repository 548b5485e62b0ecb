"""Prefixes of models: one value per leaf, for `in_axes` and the like."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax

from sonde._key_paths import key_of
from sonde.nnx.states.filters import PathParts, to_predicate
from sonde.nnx.states.state import State
from sonde.nnx.states.traversals import unflatten_mapping
from sonde.nnx.structure.graph_def import GraphDef
from sonde.nnx.structure.mapping import map as map_leaves
from sonde.nnx.structure.mode import resolve
from sonde.nnx.structure.node_states import is_object
from sonde.nnx.structure.walk import walk


@jax.tree_util.register_pytree_with_keys_class
class TreeState:
    """One value per leaf of an object; the values are the children of this pytree.

    Attributes:
        graphdef: the structure.
        leaves: the values, in the order of states.
        paths: their paths below the object.
    """

    def __init__(self, graphdef: GraphDef[Any], paths: tuple[PathParts, ...], leaves: list[Any]):
        self.graphdef = graphdef
        self.paths = paths
        self.leaves = leaves

    @property
    def state(self) -> State:
        """The values by path, as a State; the value itself for a lone Variable."""
        if self.paths == ((),):
            return self.leaves[0]
        return State(unflatten_mapping(dict(zip(self.paths, self.leaves))))

    def tree_flatten_with_keys(self) -> Any:
        """The leaves are the children."""
        keys = [jax.tree_util.GetAttrKey("/".join(map(str, path))) for path in self.paths]
        return list(zip(keys, self.leaves)), (self.graphdef, self.paths)

    @classmethod
    def tree_unflatten(cls, structure: Any, leaves: Any) -> TreeState:
        """The inverse."""
        graphdef, paths = structure
        return cls(graphdef, paths, list(leaves))

    def __repr__(self) -> str:
        return f"TreeState({self.graphdef!r}, {self.leaves!r})"


def prefix(
    node: Any, filter_map: Mapping[Any, Any] | Callable[[PathParts, Any], Any], /, *, graph: bool | None = None
) -> Any:
    """One value per leaf of a model, for `in_axes`, `out_axes` and the like.

    Args:
        node: a Module, any other node, or a pytree of them. If several arguments of a transform share references,
            pass them together, in the order of the arguments.
        filter_map: values by filter, where the first filter that matches is used; or a function of (path, leaf).
        graph: True allows shared references, False demands a tree. None: the current mode.

    Raises:
        ValueError: a leaf is matched by no filter.

    Example:
        >>> from sonde import nnx
        >>> nnx.prefix({"a": nnx.Param(1.0), "b": nnx.BatchStat(2.0)}, {nnx.Param: 0, ...: None}, graph=False)
        {'a': 0, 'b': None}
    """
    value_of = filter_map if callable(filter_map) else _by_filter(filter_map)
    if not resolve(graph):
        return map_leaves(value_of, node, graph=False, recreate_variables=False)

    from sonde.nnx.transforms.leaf_values import each_leaf

    def convert(path: tuple[Any, ...], value: Any) -> Any:
        prefix = tuple(map(key_of, path))
        if not is_object(value):
            return value_of(prefix, value)
        # one value per path of a shared Variable, so that different values for it are noticed
        walked = walk(value, graph=True, verb="prefix")
        leaves_with_paths = [(path, walked.leaves[i]) for path, _, _, i in each_leaf(walked.definition)]
        values = [value_of((*prefix, *path), leaf) for path, leaf in leaves_with_paths]
        return TreeState(GraphDef(walked.definition), tuple(path for path, _ in leaves_with_paths), values)

    return jax.tree.map_with_path(convert, node, is_leaf=is_object)


def _by_filter(filter_map: Mapping[Any, Any]) -> Callable[[PathParts, Any], Any]:
    rules = [(to_predicate(f), value) for f, value in filter_map.items()]

    def value_of(path: PathParts, leaf: Any) -> Any:
        for matches, value in rules:
            if matches(path, leaf):
                return value
        raise ValueError(
            f"prefix: the leaf {'/'.join(map(str, path))} ({type(leaf).__name__}) is matched by no filter of "
            f"{list(filter_map)}. Add `...: value` for the rest."
        )

    return value_of
