"""Array references, `jax.Ref`: arrays that any JAX function can change in place.

A Module may hold a reference as an attribute. A Variable keeps its value in a reference with `ref=True`, or, with JAX
before 0.11.1, in a tree of them with `hijax=True`. Code inside plain `jax.jit` can write to these Variables, whether or
not they are arguments of the function. The references of `hijax=True` are `ArrayReference`s, which JAX's functions take
as arrays too.

A reference is a leaf with an identity: if it occurs twice, it is still one object. JAX functions accept references but
do not return them, so a transform returns the value of a new reference, and makes a reference of that value outside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import jax
import numpy as np

from sonde._jax import ArrayLikeRefType, Tracer, is_outermost, register_array_like_reference, trace_level
from sonde.errors import TraceContextError
from sonde.nnx.variable.array_like import ArrayLike

T = TypeVar("T")

if TYPE_CHECKING:
    from sonde.nnx.variable.metadata import Metadata
    from sonde.nnx.variable.variable import Variable

_HELD = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)


class ArrayReference(ArrayLike, jax.Ref):
    """A reference that acts as the array it holds, except that `reference[...] = x` writes to it."""

    __hash__ = object.__hash__  # a reference is known by its identity, though `==` compares arrays

    @classmethod
    def to_new(cls, value: Any) -> Any:
        """A new reference to a copy of an array; in a trace, JAX's own."""
        reference: Any = jax.new_ref(value)
        if isinstance(reference, Tracer):
            return reference
        return cls(ArrayLikeRefType(reference.aval.inner_aval, reference.aval.memory_space), reference._refs)

    def get_value(self) -> Any:
        """The array that the reference holds now."""
        return self[...]

    @property
    def at(self) -> Any:
        """The property `at` of the array."""
        return self[...].at

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or hasattr(jax.Ref, name):  # an attribute of the reference that failed
            raise AttributeError(name)
        return getattr(self[...], name)


register_array_like_reference(ArrayReference)
#: The classes of references outside of traces.
REFERENCES = frozenset((jax.Ref, ArrayReference))


def is_reference(value: object) -> bool:
    """Whether a value is an array reference, or stands for one inside a trace."""
    return type(value) in REFERENCES or (isinstance(value, Tracer) and isinstance(value, jax.Ref))


def load(tree: T) -> T:
    """The value with each reference replaced by the array it holds now."""
    return jax.tree.map(lambda x: x[...] if is_reference(x) else x, tree)


def referring(tree: T) -> T:
    """The value with each array replaced by a new reference."""
    return jax.tree.map(lambda x: ArrayReference.to_new(x) if isinstance(x, _HELD) else x, tree)


def store(held: object, value: object) -> bool:
    """Writes a value into references of the same structure, shapes and dtypes; returns False if these differ."""
    references, form = jax.tree.flatten(held)
    leaves, new_form = jax.tree.flatten(value)
    if form != new_form or not all(map(_fits, references, leaves)):
        return False
    # Every leaf fits, so either all references are written or none.
    for reference, leaf in zip(references, leaves):
        reference[...] = leaf
    return True


def _fits(reference: jax.Ref, leaf: object) -> bool:
    if not is_reference(reference) or is_reference(leaf) or not isinstance(leaf, _HELD):
        return False
    return np.shape(leaf) == reference.shape and (
        isinstance(leaf, (bool, int, float, complex)) or leaf.dtype == reference.dtype
    )


def write_through(variable: Variable[Any], value: object) -> None:
    """Writes a value into a Variable's references, or gives the Variable new ones if the value has another form.

    Raises:
        TraceContextError: The value has another form, and the Variable may be a copy of one outside the trace.
    """
    held, level = variable._cell.value, trace_level()
    leaves = jax.tree.leaves(held)
    if leaves and variable._level is level and not any(map(is_reference, leaves)):
        variable._cell.value = value  # a copy that holds a plain value for now, as under nnx.grad
    elif is_reference(held) and variable._metadata["ref"]:
        held[...] = value
    elif not store(held, value):
        # inside a trace, the Variable may be a copy of one outside
        if variable._level is not level or not is_outermost(level):
            raise TraceContextError(
                f"The value of a {type(variable).__name__} with hijax=True cannot change its structure, shape or "
                f"dtype inside a transformed function: the caller would not see the change. Give it its final form "
                f"outside, or pass the object that holds it to an nnx transform without hijax=True."
            )
        variable._cell.value = referring(value)


def new_references(variable: Variable[Any], value: object, metadata: Metadata) -> Any:
    """What a Variable's cell holds for a given or copied value: new references if its metadata say so."""
    if any(map(is_reference, jax.tree.leaves(value))):
        raise ValueError(
            f"A {type(variable).__name__} was given an array reference. Give it the array, reference[...], and "
            f"ref=True for a new reference; or make the reference an attribute of a Module."
        )
    if isinstance(value, jax.ShapeDtypeStruct):
        return value  # an abstract Variable
    return jax.new_ref(value) if metadata["ref"] else referring(value) if metadata["hijax"] else value
