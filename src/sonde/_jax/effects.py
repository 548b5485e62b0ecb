"""Effects: equations that JAX keeps though their results are not used."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax._src import callback as _callback
from jax._src import effects as _effects
from jax._src import util as _util
from jax._src.interpreters import partial_eval as _pe

from sonde._jax.array_types import zeros_of_type
from sonde._jax.imported import Effect, Equation, Primitive, Var, no_effects, remat_rules, remat_saves
from sonde._jax.jaxprs import make_jaxpr, open_jaxpr

__all__ = [
    "allow_effect",
    "callbacks_unlogged",
    "hold_weakly",
    "register_partial_evaluation",
    "register_partial_use",
]


def allow_effect(effect_type: type[Effect]) -> None:
    """Allows an effect wherever JAX otherwise refuses effects, and keeps it through dead-code passes.

    Without the last list, an equation whose result is unused disappears from `scan` under reverse mode.
    """
    for allowed in (
        _effects.lowerable_effects,
        _effects.control_flow_allowed_effects,
        _effects.remat_allowed_effects,
        _effects.custom_derivatives_allowed_effects,
        _effects.partial_eval_kept_effects,
    ):
        allowed.add_type(effect_type)


@contextlib.contextmanager
def callbacks_unlogged() -> Iterator[None]:
    """Inside the block, JAX does not log exceptions of functions of the host; they are raised all the same."""
    logger = logging.getLogger(_callback.__name__)

    def drop(record: logging.LogRecord) -> bool:
        return False

    logger.addFilter(drop)
    try:
        yield
    finally:
        logger.removeFilter(drop)


def hold_weakly(parameter_type: type) -> None:
    """Keeps JAX's cache of output types from holding on to parameters of this type, as it does for jaxprs.

    The cache has 2048 entries, and every traced function would leave some there.
    """
    _util.weakref_cache_key_types.add(parameter_type)


def register_partial_use(primitive: Primitive, part: Callable[[dict[str, Any], Sequence[int]], dict[str, Any]]) -> None:
    """Lets JAX's dead-code passes drop the unused results of an equation without effect, and their operands.

    The first operands have one result each; the operands after them are kept as long as any result is. `part` gives the
    parameters for some of the results. JAX would otherwise keep all results and what leads to them. The
    transposes of what leads to unused ones would get symbolic zeros, which rules of primitives with one result need not
    expect.
    """

    def rule(used: Sequence[bool], *others: Any) -> Any:  # from JAX 0.12 on there is one more argument in between
        eqn = others[-1]
        used_outputs = [i for i, is_used in enumerate(used) if is_used]
        further = range(len(used), len(eqn.invars))
        operands = [*used_outputs, *further] if used_outputs else []
        used_in = [i in operands for i in range(len(eqn.invars))]
        if len(used_outputs) in (0, len(used)):
            return used_in, eqn if used_outputs else None
        invars, outvars = [eqn.invars[i] for i in operands], [eqn.outvars[i] for i in used_outputs]
        return used_in, eqn.replace(invars=invars, outvars=outvars, params=part(eqn.params, used_outputs))

    _pe.dce_rules[primitive] = rule


def register_partial_evaluation(
    primitive: Primitive,
    plain: Primitive,
    n_values: Callable[[dict[str, Any], Sequence[Any]], int],
    may_divide: Callable[[dict[str, Any]], bool],
    run_again: Callable[[dict[str, Any]], dict[str, Any] | None],
    differentiated: Callable[[dict[str, Any]], dict[str, Any]],
    n_needed_as_types: Callable[[dict[str, Any], Sequence[Any]], int],
) -> None:
    """Under remat, `primitive` runs in the forward pass only; the recomputation gets `plain` in its place.

    An effectful equation would otherwise make its operands residuals, which defeats rematerialization, and would run
    twice. Of the operands and outputs of an equation, the first `n_values(params, operands)` are what `plain` passes
    on; other outputs are saved from the forward pass and become further operands of `plain`. Where nothing can be
    saved, `run_again(params)` gives the parameters of an equation that computes them once more; otherwise None.

    In the rule of a derivative, values are known and tangents are not. If `may_divide(params)`, a known value stays
    known next to an unknown tangent; JAX itself would treat all results of the equation as unknown.

    With `jax_remat3`, JAX runs a function that is differentiated as it is, and differentiates its recomputation. So the
    equation of the forward pass gets the parameters `differentiated(params)`, as if it had been differentiated too.

    `jax.linear_transpose` knows none of the values of a function. Of the operands, the results may depend on the types
    alone of the first `n_needed_as_types(params, operands)`; if the others are known, so are the results.
    """

    def rule(saveable: Any, unknown_in: Sequence[bool], instantiated_in: Sequence[bool], eqn: Equation) -> Any:
        del saveable
        n, n_out = n_values(eqn.params, eqn.invars), len(eqn.outvars)
        residuals = [x for x, i in zip(eqn.invars, instantiated_in) if type(x) is Var and not i]
        if any(unknown_in):
            n = n if may_divide(eqn.params) else 0
            known_pairs = [(x, out) for x, out, u in zip(eqn.invars[:n], eqn.outvars, unknown_in) if not u]
            unknown_out = [*unknown_in[:n], *[True] * (n_out - n)]
            return _passing_on(known_pairs), eqn, unknown_out, [True] * n_out, residuals
        again = run_again(eqn.params)
        if again is not None:
            return eqn, eqn.replace(params=again), [False] * n_out, [True] * n_out, residuals
        if n == 0:  # nothing is passed on: all results are saved from the forward pass
            return eqn, None, [False] * n_out, [False] * n_out, []
        saved = [v for v in eqn.outvars[n:] if type(v) is Var]
        values, outs = [*eqn.invars[:n], *eqn.outvars[n:]], eqn.outvars[:n]
        staged = eqn.replace(primitive=plain, effects=no_effects, invars=values, outvars=outs)
        return eqn, staged, [False] * n_out, [True] * n + [False] * (n_out - n), [*residuals, *saved]

    _pe.partial_eval_jaxpr_custom_rules[primitive] = rule

    def rule_of_trace(trace: Any, *tracers: Any, **params: Any) -> Any:
        n_types = n_needed_as_types(params, tracers)
        if n_types and all(t.is_known() for t in tracers[n_types:]):
            values = [t.pval.get_known() if t.is_known() else zeros_of_type(t.aval) for t in tracers]
            return primitive.bind(*values, **params)
        outs = list(trace.default_process_primitive(primitive, tracers, params))
        if may_divide(params) and not all(t.is_known() for t in tracers):
            n = n_values(params, tracers)
            outs[:n] = [t if t.is_known() else out for t, out in zip(tracers[:n], outs[:n])]
        return outs

    _pe.custom_partial_eval_rules[primitive] = rule_of_trace

    def rule_of_remat(trace: Any, *args: Any, **params: Any) -> Any:
        del trace
        outs, n = list(primitive.bind(*args, **differentiated(params))), n_values(params, args)
        once_more = run_again(params)
        saved = outs[n:] if once_more is None else []

        def again(saved: Any, *args: Any) -> list[Any]:
            if once_more is not None:
                return list(primitive.bind(*args, **once_more))
            return [*(plain.bind(*args[:n], *saved, **params) if n else ()), *saved]

        return (outs, saved, again) if remat_saves else (outs, functools.partial(again, saved))

    remat_rules[primitive] = rule_of_remat


def _passing_on(pairs: Sequence[tuple[Any, Any]]) -> Any:
    """An equation whose results are its operands, given as pairs of operand and result; None if there are none."""
    if not pairs:
        return None
    jaxpr = open_jaxpr(make_jaxpr(jax.lax.optimization_barrier)([x.aval for x, _ in pairs]))
    (template,) = jaxpr.eqns
    return template.replace(invars=[x for x, _ in pairs], outvars=[out for _, out in pairs])
