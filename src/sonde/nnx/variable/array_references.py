"""Array references, `jax.Ref`: arrays that any JAX function can change in place.

A Module may hold a reference as an attribute. A Variable keeps its value in a reference with `ref=True`, or in a tree
of them with `hijax=True` (Flax has two names; Sonde has one mechanism for both). Code inside plain `jax.jit` can write
to these Variables, whether or not they are arguments of the function.

A reference is a leaf with an identity: if it occurs twice, it is still one object. JAX functions accept references but
do not return them, so a transform returns the value of a new reference, and makes a reference of that value outside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from sonde._jax import Tracer, is_outermost, trace_level
from sonde.errors import TraceContextError

if TYPE_CHECKING:
    from sonde.nnx.variable.metadata import Metadata
    from sonde.nnx.variable.variable import Variable

_HELD = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)


def is_reference(value: Any) -> bool:
    """Whether a value is an array reference, or stands for one inside a trace."""
    return type(value) is jax.Ref or (isinstance(value, Tracer) and isinstance(value, jax.Ref))


def load(tree: Any) -> Any:
    """The value with each reference replaced by the array it holds now."""
    return jax.tree.map(lambda x: x[...] if is_reference(x) else x, tree)


def referring(tree: Any) -> Any:
    """The value with each array replaced by a new reference."""
    return jax.tree.map(lambda x: jax.new_ref(x) if isinstance(x, _HELD) else x, tree)


def store(held: Any, value: Any) -> bool:
    """Writes a value into references of the same structure, shapes and dtypes; returns False if these differ."""
    references, form = jax.tree.flatten(held)
    leaves, new_form = jax.tree.flatten(value)
    if form != new_form or not all(map(_fits, references, leaves)):
        return False
    for reference, leaf in zip(references, leaves):
        reference[...] = leaf
    return True


def _fits(reference: Any, leaf: Any) -> bool:
    if not is_reference(reference) or is_reference(leaf) or not isinstance(leaf, _HELD):
        return False
    return np.shape(leaf) == reference.shape and (
        isinstance(leaf, (bool, int, float, complex)) or leaf.dtype == reference.dtype
    )


def write_through(variable: Variable[Any], value: Any) -> None:
    """Writes a value into a Variable's references, or gives the Variable new ones if the value has another form.

    Raises:
        TraceContextError: the value has another form, and the Variable may be a copy of one outside the trace.
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


def new_references(variable: Variable[Any], value: Any, metadata: Metadata) -> Any:
    """What a Variable's cell holds for a given or copied value: new references if its metadata say so."""
    if any(map(is_reference, jax.tree.leaves(value))):
        raise ValueError(
            f"A {type(variable).__name__} was given an array reference. Give it the array, reference[...], and "
            f"ref=True for a new reference; or make the reference an attribute of a Module."
        )
    if isinstance(value, jax.ShapeDtypeStruct):
        return value  # an abstract Variable
    return jax.new_ref(value) if metadata["ref"] else referring(value) if metadata["hijax"] else value
