"""Jitted calls. The values of sites become outputs; donation, shardings and the other options stay."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from sonde import _jax
from sonde.core.interpret.handler import Handler
from sonde.core.interpret.items import Bundle
from sonde.core.interpret.rewrite import Rewritten, rewrite
from sonde.core.interpret.trace import RULES, SiteTrace
from sonde.core.marks.site_search import has_sites
from sonde.core.session.session import with_capture_state


def jit_rule(trace: SiteTrace, args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """A jitted call."""
    outs = _run_compiled(trace, args, params) if trace.parent is _jax.eval_trace else None
    if outs is not None:
        return outs
    handler = trace.handler
    if not handler.donates:
        params = {**params, "donated_invars": (False,) * len(params["donated_invars"])}
    rewritten = rewrite(params["jaxpr"], handler)
    # XLA copies a value for each output that it is: one that has several sites leaves the call once.
    inputs, once = rewritten.inputs(handler), rewritten.deduplicated
    wider = _jax.jit_params(params, once.jaxpr, n_in=len(inputs), n_out=once.n_extra)
    return _recorded(handler, rewritten, inputs, args, _jax.jit_p.bind(*inputs, *args, **wider))


def call_directly(trace: SiteTrace, args: Sequence[Any], params: dict[str, Any]) -> list[Any] | None:
    """The outputs of a jitted call that need not be bound as an equation first; None if it has to be."""
    return trace.follow_primitive(_run_compiled, args, params) if trace.changed is None else None


def _run_compiled(trace: SiteTrace, args: Sequence[Any], params: dict[str, Any]) -> list[Any] | None:
    """The outputs of a jitted call that JAX dispatches in C++; None if the jit has options that would be lost."""
    if not _jax.jit_is_plain(params):
        return None
    handler = trace.handler
    rewritten = rewrite(params["jaxpr"], handler)
    key = "compiled", params["keep_unused"]
    if key not in rewritten.cache:
        fn = functools.partial(_jax.eval_jaxpr, rewritten.deduplicated.jaxpr)
        rewritten.cache[key] = (
            None if has_sites(rewritten.jaxpr) else rewritten.meter.jit(fn, keep_unused=params["keep_unused"])
        )
    run = rewritten.cache[key]
    if run is None:
        return None
    inputs = rewritten.inputs(handler)
    with with_capture_state(None):  # one cache entry for all captures
        outs = run(*inputs, *args)
    return _recorded(handler, rewritten, inputs, args, outs)


def _recorded(handler: Handler, new: Rewritten, inputs: Sequence[Any], args: Sequence[Any], outs: Any) -> list[Any]:
    """Gives the recorded outputs of the call to the handler; returns the outputs of the program."""
    outs = new.known(new.deduplicated.spread(outs), (*inputs, *args))
    handler.items.append(Bundle(new.specs, outs[new.n_outs :], new.cache))
    return outs[: new.n_outs]


RULES[_jax.jit_p] = jit_rule
