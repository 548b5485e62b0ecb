"""Rematerialised functions. Sites run in the forward pass; the recomputation has plain identities instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sonde import _jax
from sonde.core.rewrite import rewrite
from sonde.core.trace import RULES, SiteTrace


def remat_rule(trace: SiteTrace, args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """A call of a function under `jax.checkpoint`."""
    handler = trace.handler
    new = rewrite(params["jaxpr"], handler)
    inputs = [*new.inputs(handler), *args]
    outs = _jax.remat_p.bind(*inputs, **{**params, "jaxpr": _jax.open_jaxpr(new.jaxpr)})
    outs = new.known(outs, inputs)
    handler.items += new.items(outs)
    return outs[: new.n_outs]


RULES[_jax.remat_p] = remat_rule
