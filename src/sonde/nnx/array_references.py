"""Array references, `jax.Ref`: arrays that are changed in place, inside any function of JAX that sees them.

A Module may have one among its attributes, and a Variable keeps its value in one with `ref=True`, or in a tree of them
with `hijax=True` (Flax's two names; Sonde has one mechanism for both). Such a Variable may be written from inside plain
`jax.jit`, whether it is an argument of the function or not.

A reference is a leaf with an identity: met twice, it is one object. Functions of JAX take references and do not return
them, so a transform returns what a new one holds, and makes a reference of it again outside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from sonde._jax import Tracer, is_outermost, trace_level
from sonde.errors import TraceContextError

if TYPE_CHECKING:
    from sonde.nnx.metadata import Metadata
    from sonde.nnx.variable import Variable

_HELD = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)


def is_reference(value: Any) -> bool:
    """Whether a value is an array reference, or stands for one inside a trace."""
    return type(value) is jax.Ref or (isinstance(value, Tracer) and isinstance(value, jax.Ref))


def load(tree: Any) -> Any:
    """A value with the arrays that are in its references now."""
    return jax.tree.map(lambda x: x[...] if is_reference(x) else x, tree)


def referring(tree: Any) -> Any:
    """A value with new references in place of its arrays."""
    return jax.tree.map(lambda x: jax.new_ref(x) if isinstance(x, _HELD) else x, tree)


def store(held: Any, value: Any) -> bool:
    """Writes a value into the references that hold one of the same form; False if the form is another."""
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
    """Writes a value into the references that a Variable holds, or gives it new ones, if it has another form.

    Raises:
        TraceContextError: it has another form, and the Variable may stand for one outside a trace.
    """
    held, level = variable._cell.value, trace_level()
    leaves = jax.tree.leaves(held)
    if leaves and variable._level is level and not any(map(is_reference, leaves)):
        variable._cell.value = value  # a copy of a Variable that holds another value for now, as under nnx.grad
    elif is_reference(held) and variable._metadata["ref"]:
        held[...] = value
    elif not store(held, value):
        # inside a trace nothing tells whether the Variable stands for one outside
        if variable._level is not level or not is_outermost(level):
            raise TraceContextError(
                f"The value of a {type(variable).__name__} with hijax=True gets another form inside a transformed "
                f"function: another structure, shape or dtype. That would not reach the caller. Give it its final form "
                f"outside, or pass the object that holds it to an nnx transform without hijax=True."
            )
        variable._cell.value = referring(value)


def new_references(variable: Variable[Any], value: Any, metadata: Metadata) -> Any:
    """What the cell of a Variable holds for a given or copied value: new references, if it holds references."""
    if any(map(is_reference, jax.tree.leaves(value))):
        raise ValueError(
            f"A {type(variable).__name__} was given an array reference. Give it the array, reference[...], and "
            f"ref=True for a new reference; or make the reference an attribute of a Module."
        )
    return jax.new_ref(value) if metadata["ref"] else referring(value) if metadata["hijax"] else value
