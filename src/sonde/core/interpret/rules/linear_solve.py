"""`custom_linear_solve`: a solver, and the linear map that it inverts.

Where the call stands, only the solver runs. The map, its transpose and the solver for that are there for derivatives:
when the call is differentiated inside the capture, they run in calls of their own, and so do their sites. What the
solver recorded comes out as what JAX calls auxiliary outputs, so that the call keeps its derivatives for transforms
around the capture.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import lax

from sonde import _jax
from sonde.core.interpret.handler import Handler
from sonde.core.interpret.rewrite import rewrite
from sonde.core.interpret.trace import RULES, SiteTrace
from sonde.core.marks.site_search import has_sites

_ASIDE = ("matvec", "vecmat", "transpose_solve")


def linear_solve_rule(trace: SiteTrace, args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """A call of `jax.lax.custom_linear_solve`."""
    handler, lengths = trace.handler, params["const_lengths"]
    jaxprs, consts, remaining = params["jaxprs"]._asdict(), {}, list(args)
    for name, n in lengths._asdict().items():
        consts[name], remaining = remaining[:n], remaining[n:]
    rewritten = rewrite(jaxprs["solve"], handler)
    inputs = [*rewritten.inputs(handler), *consts["solve"]]
    jaxprs["solve"], consts["solve"] = rewritten.jaxpr, inputs
    for name in _ASIDE:
        if jaxprs[name] is not None and has_sites(jaxprs[name]):
            jaxprs[name], front = _not_recorded(jaxprs[name], handler)
            consts[name] = [*front, *consts[name]]
    if jaxprs["transpose_solve"] is not None:  # under `vmap`, it must have as many auxiliary outputs
        jaxprs["transpose_solve"] = _with_zeros(jaxprs["transpose_solve"], rewritten.types)
    operands = [x for own in consts.values() for x in own] + remaining
    lengths = lengths._replace(**{name: len(own) for name, own in consts.items()})
    outs = lax.linear_solve_p.bind(*operands, const_lengths=lengths, jaxprs=params["jaxprs"]._replace(**jaxprs))
    outs = rewritten.known(outs, [*inputs, *remaining])
    handler.items += rewritten.items(outs)
    return list(outs[: rewritten.n_outs])


def _not_recorded(jaxpr: _jax.Jaxpr, handler: Handler) -> tuple[Any, list[Any]]:
    """A program that only runs for derivatives taken outside the capture, and the values for its new inputs."""
    before = handler.counts.mark()
    rewritten = rewrite(jaxpr, handler.entering().child())
    handler.counts.return_to(before)
    return _jax.first_outputs(rewritten.jaxpr, rewritten.n_outs), rewritten.inputs(handler)


def _with_zeros(jaxpr: _jax.Jaxpr, types: Sequence[Any]) -> Any:
    """A program with further outputs, which are zeros."""

    def run(*args: Any) -> list[Any]:
        return [*_jax.eval_jaxpr(jaxpr, *args), *map(_jax.zeros_of_type, types)]

    inputs = [v.aval for v in _jax.open_jaxpr(jaxpr).invars]
    return _jax.trace_to_closed_jaxpr(run, inputs) if types else jaxpr


RULES[lax.linear_solve_p] = linear_solve_rule
