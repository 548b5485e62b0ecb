"""A function and its arguments as a traced program: equations, inputs, and the arrays it refers to."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde import _jax
from sonde.core import Meter, kept_with


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A traced program, with numbers to run it on.

    Attributes:
        jaxpr: The program, closed. Its constants are inputs, after those that were given.
        inputs: The arrays among the arguments.
        constants: The arrays that the program refers to, such as weights.
        input_names: Where each input is in the arguments.
        output_names: Where each output is in the result; `""` if the result is one array.
        donates: Whether the function donates arguments to a jitted call; the program itself does not.
        memo: Programs inside it, by identity and kind of rounding, as they are when they round differently.
    """

    jaxpr: Any
    inputs: tuple[Any, ...]
    constants: tuple[Any, ...]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    donates: bool = False
    memo: dict[tuple[int, int], tuple[Any, Any]] = dataclasses.field(default_factory=dict)

    def __call__(self, *values: Any) -> list[Any]:
        """Runs the program on other inputs and constants."""
        return _jax.eval_opened(self.jaxpr, *values)

    @property
    def values(self) -> tuple[Any, ...]:
        """Inputs and constants."""
        return (*self.inputs, *self.constants)


def is_number(leaf: Any) -> bool:
    """Whether a leaf of a pytree is an array of numbers."""
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic):
        return False
    return isinstance(leaf, jax.Array) or jnp.issubdtype(leaf.dtype, np.number) or leaf.dtype == bool


def trace(f: Callable, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Program:
    """Traces a function. Python numbers and other objects among the arguments stay as they are."""
    leaves, tree = jax.tree.flatten((tuple(args), dict(kwargs)))
    where = [jax.tree_util.keystr(keys) for keys, _ in jax.tree_util.tree_flatten_with_path((args, kwargs))[0]]
    chosen = [i for i, leaf in enumerate(leaves) if is_number(leaf)]
    names: list[str] = []

    def flat(*arrays: Any) -> list[Any]:
        filled = list(leaves)
        for i, array in zip(chosen, arrays):
            filled[i] = array
        new_args, new_kwargs = jax.tree.unflatten(tree, filled)
        outs = jax.tree_util.tree_flatten_with_path(f(*new_args, **new_kwargs))[0]
        outs = [(jax.tree_util.keystr(keys), leaf) for keys, leaf in outs if is_number(leaf)]
        names[:] = [name for name, _ in outs]
        return [leaf for _, leaf in outs]

    return from_flat(flat, tuple(leaves[i] for i in chosen), [where[i] for i in chosen], names)


def from_flat(
    flat: Callable[..., list[Any]], inputs: Sequence[Any], input_names: Sequence[str], output_names: Sequence[str]
) -> Program:
    """Traces a function that takes and returns flat arrays. `output_names` may be filled while it is traced."""
    jaxpr, constants = _jax.trace_to_jaxpr(flat, inputs)
    # JAX puts the constants before the inputs; here they come last, as what a program refers to varies.
    opened = _jax.open_jaxpr(jaxpr)
    n = len(constants)
    invars = [*opened.invars[n:], *opened.invars[:n]]
    moved = opened.replace(invars=invars, debug_info=opened.debug_info.with_unknown_names())
    closed = _jax.close_jaxpr(moved)
    keeping = _kept_inputs(closed)
    # Traced once more with those calls opened, so that what they refer to becomes a constant of the program itself.
    if _has_inner_constants(keeping):
        opened_calls = from_flat(
            lambda *xs: _jax.eval_opened(keeping, *xs, *constants), inputs, input_names, output_names
        )
        return dataclasses.replace(opened_calls, donates=keeping is not closed)
    return Program(
        keeping, tuple(inputs), tuple(constants), tuple(input_names), tuple(output_names), keeping is not closed
    )


def kept_program(f: Callable, program: Program) -> Program:
    """A program that was traced from a function once more, with the equations of its last trace if they are the same.

    JAX compiles the loops of every trace anew. One trace is kept for each set of types, none that refers to arrays.
    """
    if not isinstance(f, types.FunctionType | jax.stages.Wrapped) or inner_constants(program.jaxpr):
        return program
    opened = _jax.open_jaxpr(program.jaxpr)

    def first_trace(meter: Meter) -> list[Any]:
        meter.bytes += Meter.TRACED * len(opened.eqns)
        return [(program.jaxpr, program.memo)]

    last = kept_with(f, ("traced", *[v.aval for v in opened.invars]), first_trace)
    if not _jax.same_program(last[0][0], program.jaxpr):
        last[0] = program.jaxpr, program.memo
    jaxpr, memo = last[0]
    return dataclasses.replace(program, jaxpr=jaxpr, memo=memo)


def _has_inner_constants(jaxpr: _jax.Jaxpr) -> bool:
    """Whether jitted calls refer to arrays, which then are no constants of the program around them."""
    programs = filter(None, map(_jax.program_of_call, _jax.open_jaxpr(jaxpr).eqns))
    return any(getattr(_jax.close_jaxpr(p), "consts", ()) or _has_inner_constants(p) for p in programs)


def inner_constants(jaxpr: _jax.Jaxpr) -> list[Any]:
    """The arrays that jitted calls inside loops and branches refer to: they cannot be made inputs of the program."""
    arrays = []
    for eqn in _jax.open_jaxpr(jaxpr).eqns:
        for inner in _jax.sub_jaxprs(eqn.params):
            arrays += [*getattr(_jax.close_jaxpr(inner), "consts", ()), *inner_constants(inner)]
    return arrays


def _kept_inputs(jaxpr: _jax.Jaxpr) -> Any:
    """A program in which jitted calls do not donate their arguments, which are needed again.

    It is the program itself if no call donates.
    """
    opened = _jax.open_jaxpr(jaxpr)
    eqns = []
    for eqn in opened.eqns:
        params = _jax.with_jaxprs(eqn.params, _kept_inputs)
        if any(params.get("donated_invars") or ()):
            params = {**params, "donated_invars": (False,) * len(params["donated_invars"])}
        eqns.append(eqn if params is eqn.params else eqn.replace(params=params))
    if all(eqn is before for eqn, before in zip(eqns, opened.eqns)):
        return jaxpr
    return _jax.with_equations(jaxpr, eqns, opened.outvars, opened.effects)
