"""Types of keys and paths, and small helpers, under the names that Flax's files have for them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable
from typing import Any, TypeAlias, TypeVar

from sonde.nnx.modules.module import Module
from sonde.nnx.states.filters import PathParts as PathParts
from sonde.nnx.states.state import State
from sonde.nnx.structure.split_merge import GraphDef
from sonde.nnx.structure.value_kinds import ARRAY, CONTAINER, NODE, VARIABLE, kind_of
from sonde.nnx.structure.value_kinds import is_object as is_graph_node  # noqa: F401
from sonde.nnx.variable.variable import Variable

#: Any object that can be walked, for annotations.
Node = TypeVar("Node")

A = TypeVar("A")
M = TypeVar("M", bound=Module)

#: What `nnx.split` returns when it is given no filters.
PureState: TypeAlias = tuple[GraphDef[A], State[Any, Any]]

#: An old name, from when states held something other than Variables.
VariableState = Variable

#: A key of a path: the name of an attribute, or an index.
Key: TypeAlias = Hashable


def first_from(*values: Any, error_msg: str) -> Any:
    """The first value that is not None.

    Raises:
        ValueError: All are None; with `error_msg` as its message.

    Example:
        >>> first_from(None, 0, 2, error_msg="give a number")
        0
    """
    for value in values:
        if value is not None:
            return value
    raise ValueError(error_msg)


def is_node(value: object) -> bool:
    """Whether a value has parts that `nnx.split` visits: a Module, another Pytree, or a pytree of JAX.

    Example:
        >>> from sonde import nnx
        >>> nnx.graph.is_node(nnx.Dict()), nnx.graph.is_node([1]), nnx.graph.is_node(nnx.Param(1.0))
        (True, True, False)
    """
    return kind_of(value) in (NODE, CONTAINER)


def is_pytree_node(value: object) -> bool:
    """Whether a value is a pytree of JAX with parts, such as a list, but not a Module."""
    return kind_of(value) == CONTAINER


def is_node_leaf(value: object) -> bool:
    """Whether a value is a leaf of a state: a Variable or an array."""
    return kind_of(value) in (VARIABLE, ARRAY)


def has_keyword_arg(func: Callable[..., Any], name: str) -> bool:
    """Whether a function has a parameter that can be given by this name."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return any(p.name == name and p.kind in kinds for p in inspect.signature(func).parameters.values())


def tuple_init() -> tuple[Any, ...]:
    """An empty tuple: the default `init_fn` of `sow`."""
    return ()


def tuple_reduce(before: tuple[Any, ...], value: object) -> tuple[Any, ...]:
    """Appends a value: the default `reduce_fn` of `sow`."""
    return (*before, value)
