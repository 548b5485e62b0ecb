"""How much rounding alone changes what a program computes.

The program runs with half of the results of arithmetic, and of what goes into it, moved by one unit in the last place.
Two programs that do the same in another order, fused or not, differ by about as much. This needs no wider dtype, knows
the dtype of each equation, and shows where a program amplifies rounding: a difference of two large numbers, say.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sonde import _jax
from sonde.port.difference import coarsest
from sonde.programs.traced import Program
from sonde.programs.unrolled import Step, Tape

_FACTORS = {8: 0x9D, 16: 0x9E35, 32: 0x9E3779B1, 64: 0x9E3779B97F4A7C15}


def rounded_otherwise(program: Program, draw: int) -> list[Any]:
    """The results of a program whose arithmetic rounds differently; each `draw` in another way.

    What goes into the program stays as it is: it may be compared with numbers, or count something.
    """
    return _Rounding(program.memo, draw + 1).run(program.jaxpr, *program.values)


def coarsest_dtype(program: Program) -> tuple[Any, str]:
    """The floating-point dtype of the lowest precision that a program computes in, and a line that does; or None."""
    lowest, line = None, ""
    todo = [program.jaxpr]
    while todo:
        for eqn in _jax.open_jaxpr(todo.pop()).eqns:
            todo += _jax.sub_jaxprs(eqn.params)
            for var in filter(_is_float_type, eqn.outvars):
                if lowest is None or coarsest((lowest, var.aval.dtype)) != lowest:
                    lowest, line = np.dtype(var.aval.dtype), next(iter(_jax.lines_of([eqn.source_info])), "")
    return lowest, line


class Interpreter:
    """Runs a program equation by equation under the current trace; what an equation does can be changed.

    Args:
        memo: Programs inside equations as they are when they run otherwise, by identity and `key`.
        key: Which change this is.
    """

    def __init__(self, memo: dict[tuple[int, int], tuple[Any, Any]], key: int) -> None:
        self.memo, self.key = memo, key

    def run(self, jaxpr: Any, *inputs: Any) -> list[Any]:
        """The outputs of a program."""
        opened, consts = _jax.open_jaxpr(jaxpr), getattr(_jax.close_jaxpr(jaxpr), "consts", ())
        env = dict(zip([*opened.constvars, *opened.invars], [*map(self.constant, consts), *inputs]))

        def read(v: Any) -> Any:
            return self.constant(v.val) if isinstance(v, _jax.Literal) else env[v]

        for eqn in opened.eqns:
            values = [read(v) for v in eqn.invars]
            called = self.program_of_call(eqn)
            sharded = eqn.primitive is _jax.shard_map_p  # its program only runs on the mesh
            if called is not None or sharded:
                inner = functools.partial(self.run, eqn.params["jaxpr"] if sharded else called)
                with _jax.surroundings(eqn.ctx, eqn.source_info):
                    outs = _jax.over_shards(eqn.params, inner)(*values) if sharded else inner(*values)
            else:
                outs = self.equation(eqn, values)
            env.update(zip(eqn.outvars, outs))
        return [read(v) for v in opened.outvars]

    def program_of_call(self, eqn: Any) -> Any | None:
        """The program of an equation that is a call, if its equations may run one by one."""
        return _jax.program_of_call(eqn)

    def constant(self, value: Any) -> Any:
        """A literal, or an array that a program refers to."""
        return value

    def aval(self, aval: Any) -> Any:
        """The type of an input of a program inside an equation."""
        return aval

    def equation(self, eqn: Any, values: Sequence[Any]) -> list[Any]:
        """What an equation computes."""
        raise NotImplementedError

    def inside(self, jaxpr: Any) -> Any:
        """A program inside an equation as it runs here."""
        key = id(jaxpr), self.key
        if key not in self.memo:
            opened = _jax.open_jaxpr(jaxpr)
            avals = [self.aval(v.aval) for v in opened.invars]
            new = _jax.trace_to_closed_jaxpr(lambda *xs: self.run(jaxpr, *xs), avals)
            if opened is jaxpr:
                if _jax.open_jaxpr(new).constvars:
                    raise NotImplementedError("a program inside an equation refers to arrays")
                new = _jax.open_jaxpr(new)
            self.memo[key] = jaxpr, new
        return self.memo[key][1]


class _Rounding(Interpreter):
    """Runs programs with other rounding."""

    def equation(self, eqn: Any, values: Sequence[Any]) -> list[Any]:
        params = _jax.with_jaxprs(eqn.params, self.inside)
        run = functools.partial(run_in_its_scopes, eqn, params)
        # An equation with programs inside has them moved already.
        rounds = params is eqn.params and any(map(_is_float_type, eqn.outvars))
        return _run_moved(eqn.primitive, run, values, self.key) if rounds else run(values)


def run_in_its_scopes(eqn: Any, params: dict[str, Any], values: Sequence[Any]) -> list[Any]:
    """Runs an equation in its own scopes: sites in it keep their paths."""
    return _jax.run_operation(eqn.primitive, params, values, eqn.ctx, eqn.source_info)


def moved_step(tape: Tape, step: Step, values: Sequence[Any]) -> list[Any]:
    """Runs a step of a tape with other rounding."""
    if step.equation is None or not any(_is_float(tape.values[i]) for i in step.outputs):
        return step.run(values)
    return _run_moved(step.equation.primitive, step.run, values, 1)


def _run_moved(
    primitive: Any, run: Callable[[Sequence[Any]], list[Any]], values: Sequence[Any], salt: int
) -> list[Any]:
    """Runs an operation without programs inside that makes floating-point numbers, with other rounding."""
    if _jax.facts_of(primitive).exact:
        return run(values)
    if _jax.only_moves(primitive):  # a cast
        return [_moved(new, salt) if _is_rounded(old, new) else new for old, new in zip(values, run(values))]
    # What goes in moves too: rounding inside a sum is relative to its terms, which may cancel.
    outs = run([_moved(x, salt) if _is_float(x) else x for x in values])
    return [_moved(x, salt) if _is_float(x) else x for x in outs]


def _is_float(x: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(x), jnp.floating) and not isinstance(x, float)


def _is_float_type(var: Any) -> bool:
    dtype = getattr(var.aval, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.floating)


def _is_rounded(old: Any, new: Any) -> bool:
    """Whether a cast rounds: from floating-point numbers to shorter ones."""
    return _is_float(old) and _is_float(new) and jnp.finfo(old.dtype).nmant > jnp.finfo(new.dtype).nmant


@functools.partial(jax.jit, inline=True)
def _moved(x: Any, salt: int) -> Any:
    """A quarter of the elements moved up by one unit in the last place, a quarter down, as their bits decide."""
    x = jnp.asarray(x)
    width = x.dtype.itemsize * 8
    whole = jnp.dtype(f"uint{width}")
    bits = lax.bitcast_convert_type(x, whole) + jnp.asarray(salt).astype(whole)
    mixed = bits * np.array(_FACTORS[width], whole)
    mixed = (mixed ^ (mixed >> np.array(width // 2, whole))) * np.array(_FACTORS[width], whole)
    quarter = (mixed >> np.array(width - 2, whole)).astype(np.int8)
    unit = np.array(jnp.finfo(x.dtype).eps, x.dtype)
    one = np.ones((), x.dtype)
    return x * jnp.where(quarter == 0, one + unit, jnp.where(quarter == 1, one - unit, one))
