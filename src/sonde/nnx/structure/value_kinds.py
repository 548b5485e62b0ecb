"""The kinds of values that the walk and attribute assignment tell apart, decided once per type.

Five kinds: a Variable, a node (Pytree, Module, ...), an array (or array reference), a container (list, tuple, dict, or
another pytree known to JAX), and everything else. Variables, nodes, arrays and registered types are *data*; a container
is not data itself but may hold some.
"""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import numpy as np

from sonde._jax import Tracer
from sonde.nnx.variable.array_references import REFERENCES
from sonde.nnx.variable.variable import Variable

T = TypeVar("T", bound=type)

OTHER, ARRAY, CONTAINER, VARIABLE, NODE = range(5)

#: Kinds of types seen so far. Types of kind OTHER that may still be registered with JAX are not kept here.
KIND: dict[type, int] = dict.fromkeys(
    (int, float, complex, bool, str, bytes, type, type(len), type(lambda: None), np.float32, np.dtype), OTHER
)
KIND.update(dict.fromkeys((list, tuple, dict, type(None)), CONTAINER))
KIND.update(dict.fromkeys(REFERENCES, ARRAY))
_data_types: set[type] = set()
_node_types: list[type] = []


def declare_node_type(cls: type) -> None:
    """Makes instances of a class, and of its subclasses, nodes."""
    _node_types.append(cls)


def kind_of(value: object) -> int:
    """The kind of a value."""
    cls = type(value)
    kind = KIND.get(cls)
    if kind is None:
        kind = _find_kind(cls, value)
    return kind


def _find_kind(cls: type, value: object) -> int:
    # Variables and nodes before containers: both are pytrees of JAX too.
    if issubclass(cls, Variable):
        kind = VARIABLE
    elif any(issubclass(cls, node) for node in _node_types):
        kind = NODE
    elif issubclass(cls, (np.ndarray, Tracer)) or isinstance(value, jax.Array):
        kind = ARRAY
    elif not jax.tree_util.all_leaves([value]):
        kind = CONTAINER
    else:
        return OTHER  # the type may be registered with JAX later
    KIND[cls] = kind
    return kind


def is_object(value: object) -> bool:
    """Whether a value has an identity and may be shared: a node or a Variable."""
    return kind_of(value) in (NODE, VARIABLE)


def register_data_type(type_: T, /) -> T:
    """Makes attributes that hold a value of this type data, without `nnx.data`. Also a class decorator.

    Example:
        >>> import dataclasses, jax
        >>> from sonde import nnx
        >>> @nnx.register_data_type
        ... @dataclasses.dataclass(frozen=True)
        ... class Token:
        ...     number: int
        >>> nnx.is_data(Token(3))
        True
    """
    _data_types.add(type_)
    return type_


def is_data(value: object, /) -> bool:
    """Whether an attribute that holds this value is data by default.

    Arrays (of JAX and NumPy), Variables, Pytrees and Modules, and types given to `register_data_type` are. Numbers,
    strings, functions and plain containers are not, even if the container holds data.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> nnx.is_data(jnp.zeros(2)), nnx.is_data(3), nnx.is_data([jnp.zeros(2)])
        (True, False, False)
    """
    kind = kind_of(value)
    return kind in (VARIABLE, NODE, ARRAY) or (bool(_data_types) and type(value) in _data_types)


def has_data(value: object, /) -> list[Any]:
    """The data inside a value: itself, or what its containers hold."""
    if kind_of(value) != CONTAINER:
        return [value] if is_data(value) else []
    return [leaf for leaf in jax.tree.leaves(value, is_leaf=is_data) if is_data(leaf)]
