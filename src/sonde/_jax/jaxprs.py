"""Jaxprs: looking into them, running them, tracing functions to them.

JAX 0.10 has open and closed jaxprs; later versions have one class that carries its constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax._src import core as _core
from jax._src.interpreters import partial_eval as _pe

from sonde._jax.imported import Jaxpr, Literal, Var

__all__ = [
    "add_equation",
    "added_amount",
    "close_jaxpr",
    "eval_jaxpr",
    "first_outputs",
    "jaxprs_in",
    "name_of_program",
    "new_var",
    "open_jaxpr",
    "replace_jaxpr",
    "same_program",
    "sub_jaxprs",
    "trace_to_closed_jaxpr",
    "trace_to_jaxpr",
    "with_constants",
    "with_equations",
    "with_jaxprs",
]

make_jaxpr = jax.make_jaxpr  # JAX's own, also while `patches.made_jaxprs` has put another in its place

ONE_JAXPR_CLASS = getattr(_core, "ClosedJaxpr", _core.Jaxpr) is _core.Jaxpr


def open_jaxpr(jaxpr: Jaxpr) -> Any:
    """The open jaxpr: the part with the equations."""
    return jaxpr if ONE_JAXPR_CLASS or isinstance(jaxpr, _core.Jaxpr) else jaxpr.jaxpr


def close_jaxpr(jaxpr: Jaxpr) -> Any:
    """A jaxpr together with its constants; an open one must have none."""
    return _core.ClosedJaxpr(jaxpr, ()) if not ONE_JAXPR_CLASS and isinstance(jaxpr, _core.Jaxpr) else jaxpr


def first_outputs(jaxpr: Jaxpr, n: int) -> Any:
    """A closed jaxpr without the outputs after the first `n`."""
    inner = open_jaxpr(jaxpr)
    fewer = inner.replace(outvars=inner.outvars[:n])
    return fewer if inner is jaxpr else jaxpr.replace(jaxpr=fewer)


def sub_jaxprs(params: dict[str, Any]) -> list[Any]:
    """The jaxprs among the parameters of an equation, open or closed."""
    if "_prim" in params:  # an operation that carries its own implementation, with its own parameters
        params = params["_prim"].params
        traced = [value.jaxpr for value in params.values() if isinstance(value, jax.stages.Traced)]
        if traced:  # a function with its own derivatives, and the rules beside it
            return traced
    jaxprs = []
    for value in params.values():
        cls = type(value)
        if cls in _NO_JAXPR:
            continue
        if cls is tuple or isinstance(value, (tuple, list)):
            for x in value:
                if type(x) not in _NO_JAXPR and type(x) is not tuple and hasattr(x, "eqns"):
                    jaxprs.append(x)
        elif hasattr(value, "eqns"):
            jaxprs.append(value)
    return jaxprs


# The types of most parameters: checking the type is cheaper than asking for an attribute that they lack.
_NO_JAXPR = {type(None), bool, int, float, str, np.dtype, type(np.dtype("float32")), type(np.dtype("int32"))}


def with_jaxprs(params: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """The parameters of an equation with other jaxprs in them; the same dict if none of them changes."""
    changed: dict[str, Any] = {}
    for name, value in params.items():
        if hasattr(value, "eqns"):
            replacement = change(value)
        elif isinstance(value, tuple) and any(hasattr(x, "eqns") for x in value):
            parts = [change(x) if hasattr(x, "eqns") else x for x in value]
            replacement = value if all(a is b for a, b in zip(parts, value)) else tuple(parts)
        else:
            continue
        if replacement is not value:
            changed[name] = replacement
    return {**params, **changed} if changed else params


def jaxprs_in(traced: Any) -> Iterator[Any]:
    """The jaxprs in what JAX returns from tracing a function or from finding its trace."""
    for part in traced if isinstance(traced, tuple) else (traced,):
        if hasattr(part, "eqns"):
            yield part
        elif isinstance(params := getattr(part, "params", None), dict):
            yield from sub_jaxprs(params)


def same_program(a: Jaxpr, b: Jaxpr) -> bool:
    """Whether two jaxprs compute the same, equation by equation; False if a parameter cannot be compared.

    JAX compiles a loop that is run by itself for the object that its jaxpr is, not for what that says.
    """
    if a is b:
        return True
    consts = [getattr(close_jaxpr(jaxpr), "consts", ()) for jaxpr in (a, b)]
    a, b = open_jaxpr(a), open_jaxpr(b)
    numbers: dict[Var, Var] = {}  # the variables of `b`, by those of `a`

    def bound(ours: Sequence[Var], theirs: Sequence[Var]) -> bool:
        numbers.update(zip(ours, theirs))
        return len(ours) == len(theirs) and all(x.aval == y.aval for x, y in zip(ours, theirs))

    def read(ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
        return len(ours) == len(theirs) and all(
            _same_literal(x, y) if isinstance(x, Literal) else numbers[x] is y for x, y in zip(ours, theirs)
        )

    return (
        len(consts[0]) == len(consts[1])
        and all(x is y for x, y in zip(*consts))
        and len(a.eqns) == len(b.eqns)
        and bound(a.constvars, b.constvars)
        and bound(a.invars, b.invars)
        and all(
            x.primitive is y.primitive
            and x.ctx is y.ctx
            and x.effects == y.effects
            and read(x.invars, y.invars)
            and bound(x.outvars, y.outvars)
            and x.params.keys() == y.params.keys()
            and all(_same_parameter(value, y.params[name]) for name, value in x.params.items())
            for x, y in zip(a.eqns, b.eqns)
        )
        and read(a.outvars, b.outvars)
    )


def _same_literal(a: Literal, b: Any) -> bool:
    values = isinstance(b, Literal) and a.aval == b.aval and (np.asarray(a.val), np.asarray(b.val))
    return bool(values) and values[0].dtype == values[1].dtype and values[0].tobytes() == values[1].tobytes()


def _same_parameter(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if hasattr(a, "eqns"):
        return same_program(a, b)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(_same_parameter, a, b))
    if isinstance(a, (float, complex, np.generic)):
        return repr(a) == repr(b)  # 0.0 is not -0.0
    try:
        return hash(a) == hash(b) and a == b  # arrays have no hash
    except TypeError:
        return False


def eval_jaxpr(jaxpr: Jaxpr, *args: Any) -> list[Any]:
    """Runs a jaxpr under the current trace."""
    closed = close_jaxpr(jaxpr)
    return _core.eval_jaxpr(open_jaxpr(closed), closed.consts, *args)


def name_of_program(jaxpr: Jaxpr) -> str:
    """The name of the function that a jaxpr was made of, with its line."""
    info = getattr(open_jaxpr(jaxpr), "debug_info", None) if hasattr(jaxpr, "eqns") else None
    return str(getattr(info, "func_src_info", None) or type(jaxpr).__name__)


def trace_to_jaxpr(fn: Callable[..., list[Any]], avals: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Traces `fn`, which takes and returns flat values, to a jaxpr whose first inputs are the constants returned."""
    closed = make_jaxpr(fn)(*avals)
    consts = list(closed.consts)
    if not consts:
        return closed, consts
    return close_jaxpr(_pe.convert_constvars_jaxpr(open_jaxpr(closed))), consts


def trace_to_closed_jaxpr(fn: Callable[..., list[Any]], avals: Sequence[Any]) -> Any:
    """Traces `fn`, which takes and returns flat values, to a jaxpr that holds its constants itself."""
    return make_jaxpr(fn)(*avals)


def replace_jaxpr(
    jaxpr: Jaxpr, *, extra_invars: Sequence[Any], eqns: Sequence[Any], outvars: Sequence[Any], effects: Any
) -> Any:
    """A closed jaxpr with other equations and outputs, and new inputs in front."""
    opened = open_jaxpr(jaxpr)
    replaced = opened.replace(
        invars=[*extra_invars, *opened.invars],
        eqns=list(eqns),
        outvars=list(outvars),
        effects=effects,
        debug_info=opened.debug_info.with_unknown_names(),
    )
    return replaced if ONE_JAXPR_CLASS else _core.ClosedJaxpr(replaced, close_jaxpr(jaxpr).consts)


def with_equations(jaxpr: Jaxpr, eqns: Sequence[Any], outvars: Sequence[Any], effects: Any) -> Any:
    """A jaxpr, open or closed, with other equations and outputs of the same types."""
    opened = open_jaxpr(jaxpr)
    replaced = opened.replace(eqns=list(eqns), outvars=list(outvars), effects=effects, debug_info=opened.debug_info)
    return replaced if opened is jaxpr else jaxpr.replace(jaxpr=replaced)


def with_constants(jaxpr: Jaxpr, new: Any, kept: Sequence[int]) -> Any:
    """A closed jaxpr with the equations of another one, and only some of its constants."""
    closed = close_jaxpr(jaxpr)
    constvars, consts = [new.constvars[i] for i in kept], [closed.consts[i] for i in kept]
    if ONE_JAXPR_CLASS:
        return new.replace(constvars=constvars, consts=consts)
    return closed.replace(jaxpr=new.replace(constvars=constvars), consts=consts)


def new_var(aval: Any) -> Var:
    """A fresh variable."""
    return Var(aval)


def add_equation(var: Any, amount: int) -> tuple[Any, Any]:
    """The equation `out = var + amount` for an int32 scalar, and `out`."""
    # Not `x + amount`: code under `inside=` may be that of the operator.
    jaxpr = open_jaxpr(make_jaxpr(lambda x: lax.add(x, np.int32(amount)))(var.aval))
    (template,) = jaxpr.eqns
    out = new_var(var.aval)
    invars = [x if isinstance(x, Literal) else var for x in template.invars]
    return template.replace(invars=invars, outvars=[out]), out


def added_amount(made: Any) -> int | None:
    """The literal whole number that an equation adds to its first operand; None if there is none."""
    added = made.inputs[1] if made.primitive is lax.add_p else None
    number = np.asarray(added.val if isinstance(added, Literal) else 0.0)
    return int(number) if number.dtype.kind in "iu" and not number.ndim else None
