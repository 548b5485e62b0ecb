"""Jitted calls. The sites' values become outputs; donation, shardings and the other options stay."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax

from sonde import _jax
from sonde.core.context import look
from sonde.core.item import Bundle
from sonde.core.rewrite import Rewritten, rewrite
from sonde.core.site_search import has_sites
from sonde.core.trace import RULES, SiteTrace


def jit_rule(trace: SiteTrace, args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """A jitted call."""
    handler = trace.handler
    if not handler.donates:
        params = {**params, "donated_invars": (False,) * len(params["donated_invars"])}
    new = rewrite(params["jaxpr"], handler)
    inputs = new.inputs(handler)
    fast = _compiled(new, params) if trace.parent is _jax.eval_trace else None
    if fast is not None:
        with look(None):  # one cache entry, whoever looks
            outs = fast(*inputs, *args)
    else:
        wider = _jax.jit_params(params, new.distinct.jaxpr, n_in=len(inputs), n_out=new.distinct.n_extra)
        outs = _jax.jit_p.bind(*inputs, *args, **wider)
    outs = new.known(new.distinct.spread(outs), [*inputs, *args])
    handler.items.append(Bundle(new.specs, outs[new.n_outs :], new.cache))
    return outs[: new.n_outs]


def _compiled(new: Rewritten, params: dict[str, Any]) -> Any:
    """The rewritten function, for JAX to dispatch in C++; None if the jit has options that would be lost."""
    key = ("compiled", params["keep_unused"], params["donated_invars"], params["in_shardings"], params["out_shardings"])
    known = new.cache
    if key not in known:
        known[key] = None
        if _jax.jit_is_plain(params) and not has_sites(new.jaxpr):
            fn = functools.partial(_jax.eval_jaxpr, new.distinct.jaxpr)
            known[key] = jax.jit(fn, keep_unused=params["keep_unused"])
    return known[key]


RULES[_jax.jit_p] = jit_rule
