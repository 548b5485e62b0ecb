"""Whether two traced programs compute the same: by a name for each value, made of the operation and of what went in.

Programs of two libraries are compared before they are compiled, which takes most of the time. Values with one name are
equal to the bit; values with two names may be equal too. Names do not depend on the order of operations, on dead code,
or on the jitted functions that a program is divided into.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

# These only run the program inside them, and say how it is differentiated.
_INLINED = {"pjit", "jit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call"}
_CHANGE_NOTHING = {"copy", "copy_p"}
# Names, places in the source, and rules for what has been differentiated already.
_NO_MATTER = {
    "name",
    "debug_info",
    "ctx_mesh",
    "jvp_jaxpr_fun",
    "fwd_jaxpr_thunk",
    "bwd",
    "num_consts",
    "donated_invars",
}


def names_of_outputs(traced: Any) -> list[str]:
    """A name for each output of what `jax.jit(f).trace(...)` returned."""
    inputs = traced.jaxpr.in_avals
    return _outputs(traced.jaxpr, [f"input {i}" for i in range(len(inputs))])


def outcomes_that_differ(ours: Callable[[], Any], theirs: Callable[[], Any]) -> tuple[Any, Any] | None:
    """What two functions return, or None if they compute the same.

    They are traced first: programs that are the same need not run.
    """
    try:
        (a, traced), (b, expected) = _traced(ours), _traced(theirs)
    except (TypeError, jax.errors.JAXTypeError):  # a result that is no array, or a number that is needed at once
        return ours(), theirs()
    forms = [[(x.shape, x.dtype) for x in t.out_info] for t in (traced, expected)]
    if a == b and forms[0] == forms[1] and names_of_outputs(traced) == names_of_outputs(expected):
        return None
    return ours(), theirs()  # operation by operation: most were compiled for other tests


def names_in_order(tree: Any) -> Any:
    """The names in a tree of dicts as they come, where JAX sorts them."""
    if isinstance(tree, Mapping):
        return [(name, names_in_order(x)) for name, x in tree.items()]
    return [names_in_order(x) for x in tree] if type(tree) in (tuple, list) else None


def _traced(function: Callable[[], Any]) -> tuple[list[Any], Any]:
    """A function without arguments, traced; first, what it returns besides arrays: a structure, and names of axes."""
    words: list[Any] = []

    def arrays() -> list[Any]:
        returned = function()
        leaves, structure = jax.tree.flatten(returned)
        words[:] = [structure, names_in_order(returned), *(leaf if isinstance(leaf, str) else None for leaf in leaves)]
        return [leaf for leaf in leaves if not isinstance(leaf, str)]

    return words, jax.jit(arrays).trace()


def _name(*parts: Any) -> str:
    return hashlib.sha1(repr(parts).encode()).hexdigest()


def _constant(value: Any) -> str:
    if hasattr(value, "dtype") and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    array = np.asarray(value)
    return _name(array.shape, str(array.dtype), array.tobytes())


def _is_program(value: Any) -> bool:
    return hasattr(getattr(value, "jaxpr", value), "eqns")


def _parameter(value: Any) -> Any:
    if _is_program(value):
        inputs = getattr(value, "jaxpr", value).invars
        return _outputs(value, [f"argument {i}" for i in range(len(inputs))])
    if isinstance(value, (tuple, list)):
        return [_parameter(part) for part in value]
    return getattr(value, "__name__", type(value).__name__) if callable(value) else repr(value)


def _outputs(program: Any, inputs: Sequence[str]) -> list[str]:
    jaxpr = getattr(program, "jaxpr", program)
    known = dict(zip(jaxpr.invars, inputs))
    known.update(zip(jaxpr.constvars, map(_constant, getattr(program, "consts", ()))))
    read = lambda atom: _constant(atom.val) if hasattr(atom, "val") else known[atom]
    for equation in jaxpr.eqns:
        primitive, given = equation.primitive.name, [read(atom) for atom in equation.invars]
        inside = [value for value in equation.params.values() if _is_program(value)]
        if primitive in _INLINED and inside:
            made = _outputs(inside[0], given)
        elif primitive in _CHANGE_NOTHING or _is_no_broadcast(equation):
            made = given[:1]
        else:
            options = sorted((k, repr(_parameter(v))) for k, v in equation.params.items() if k not in _NO_MATTER)
            kinds = [str(var.aval) for var in equation.outvars]
            made = [_name(primitive, options, given, kinds, i) for i in range(len(kinds))]
        known.update(zip(equation.outvars, made))
    return [read(atom) for atom in jaxpr.outvars]


def _is_no_broadcast(equation: Any) -> bool:
    return equation.primitive.name == "broadcast_in_dim" and equation.invars[0].aval.shape == equation.params["shape"]
