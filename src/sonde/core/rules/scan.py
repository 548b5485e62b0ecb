"""`scan`, and with it `map`, `fori_loop` with known bounds, and the gradients of all of them.

Every iteration's value becomes a row of one array, in the order in which the iterations ran. A gradient comes out of
the reversed loop that computes it; whether its rows have to be turned round is decided when it is paired with its
value, where it is known if the gradient is of this loop or was taken inside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from sonde import _jax
from sonde.core.rewrite import rewrite
from sonde.core.site import Axis
from sonde.core.trace import RULES, SiteTrace


def scan_rule(trace: SiteTrace, args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """A scan."""
    handler, body = trace.handler, params["jaxpr"]
    length, reverse = params["length"], params["reverse"]
    xs = handler.loop_inputs(body, length, reverse)
    if handler.counts_iterations:
        xs = [jnp.flip(jnp.arange(length)) if reverse else jnp.arange(length), *xs]
    steps = [_jax.typeof(jax.eval_shape(lambda x: x[0], x)) for x in xs]
    new = rewrite(body, handler, steps)
    inputs = new.inputs(handler)
    wider = _jax.scan_params(params, new.jaxpr, n_consts=len(inputs), n_xs=len(xs), n_ys=new.n_extra)
    outs = _jax.scan_p.bind(*inputs, *args, *xs, **wider)
    axis = Axis("scan", length, loop=object(), reverse=reverse)
    items = new.items(outs, axis)
    if reverse:
        items = [item.map_arrays(_turned) if item.view.is_value else item for item in items]
    handler.items += items
    return outs[: new.n_outs]


def _turned(x: Any) -> Any:
    return jnp.flip(x, 0)


RULES[_jax.scan_p] = scan_rule
