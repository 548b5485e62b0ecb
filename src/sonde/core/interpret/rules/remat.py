"""Rematerialized functions. Sites run in the forward pass; the recomputation has plain identities instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sonde import _jax
from sonde.core.interpret.rewrite import rewrite
from sonde.core.interpret.trace import RULES, SiteTrace, check_may_miss_all
from sonde.core.marks.site_search import first_site
from sonde.errors import CaptureError


def remat_rule(trace: SiteTrace, args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """A call of a function under `jax.checkpoint`."""
    rewritten = rewrite(params["jaxpr"], trace.handler)
    params = {**params, "jaxpr": _jax.open_jaxpr(rewritten.jaxpr)}
    return rewritten.call(trace.handler, args, lambda inputs: _jax.remat_p.bind(*inputs, **params))


def operation_rule(trace: SiteTrace, args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """An operation that carries its own rules: what an upgrade flag makes of a call, `custom_root` in JAX 0.12, others.

    The call of a plain function with the same values and derivatives is made instead.
    """
    operation = params["_prim"]
    if not isinstance(operation, _jax.RematTraced):
        plain = _jax.plain_call(operation)
        if plain is None:
            check_may_miss_all(_jax.call_hi_primitive_p, params)
            return _jax.call_hi_primitive_p.bind(*args, **params)
        with _jax.set_current_trace(trace):
            return plain(*args)
    if trace.parent is _jax.eval_trace:
        with _jax.set_current_trace(trace):
            return _jax.expanded(args, params)
    rewritten = rewrite(operation.jaxpr, trace.handler)
    return rewritten.call(trace.handler, args, lambda inputs: _jax.bind_checkpoint(operation, rewritten.jaxpr, inputs))


def _check_recomputation(jaxpr: _jax.Jaxpr) -> None:
    """Checks a program that recomputes a function, with `jax_remat3`: its sites would be recorded again.

    Raises:
        CaptureError: It has sites, in a loop or a function whose rules are not those of what is inside.
    """
    site = first_site(jaxpr)
    if site is not None:
        raise CaptureError(
            f"site {site.path!r} ({site.line}) cannot be captured: it is in a while_loop or a function with its own "
            "derivatives, under jax.checkpoint with jax_remat3, which runs it twice; sow the value outside of it, or "
            "set jax_remat3 to False"
        )


recomputing: _jax.InPlace = _jax.recomputations_checked(_check_recomputation)
RULES[_jax.remat_p] = remat_rule
if _jax.call_hi_primitive_p is not None:
    RULES[_jax.call_hi_primitive_p] = operation_rule
