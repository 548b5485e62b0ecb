"""The structure of a model as an object, `GraphDef`, and a State that carries it, `GraphState`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import jax

from sonde.core import ModuleKind, Origin, register_modules
from sonde.nnx.rendering import Rendered, Writer
from sonde.nnx.states import traversals
from sonde.nnx.states.state import FlatState, State, merge_state
from sonde.nnx.structure.definitions import count_leaves, has_references
from sonde.nnx.structure.value_kinds import CONTAINER, NODE, VARIABLE
from sonde.nnx.variable.metadata import structural_hash

if TYPE_CHECKING:
    from sonde.nnx.modules.call import ApplyCaller

A = TypeVar("A")


class GraphDef(Rendered, Generic[A]):
    """The structure of a model without its arrays: hashable, comparable, a pytree without leaves.

    Attributes:
        definition: the nested tuples that `sonde.nnx.structure.definitions` describes.
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
        """The parts of the structure, in the order of the walk; see `sonde.nnx.structure.nodes`."""
        from sonde.nnx.structure.nodes import nodes_of

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
        from sonde.nnx.modules.call import call

        return call((self, merge_state(state, *states)))

    def _nnx_text(self, writer: Writer, depth: int) -> str:
        del writer, depth
        return f"GraphDef({getattr(self.type, '__name__', None)}, num_leaves={self.num_leaves})"

    def _nnx_attributes(self) -> Mapping[str, object]:
        return {"type": self.type, "num_leaves": self.num_leaves}


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
        """The entries of the state are the children, with the same paths as in the state."""
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


def state_in(given: Any) -> Any:
    """The State in a GraphState; anything else as it is."""
    return given._state if isinstance(given, GraphState) else given


def lone_leaf(states: tuple[Any, ...]) -> Any:
    """The leaf among the states of a lone Variable or array; the other states are empty."""
    leaves = [s for s in states if not isinstance(s, (Mapping, FlatState))]
    leaves += [leaf for s in states if isinstance(s, FlatState) for leaf in s.leaves]
    if len(leaves) != 1:
        raise ValueError(f"the states of a lone Variable or array hold one leaf, but {len(leaves)} were given.")
    return leaves[0]
