"""`scan`, and with it `map`, `fori_loop` with known bounds, and the gradients of all of them.

Every iteration's value becomes a row of one array, in the order in which the iterations ran. A gradient comes out of
the reversed loop that computes it; whether its rows have to be reversed is decided when it is paired with its value,
because only then is it known whether the gradient is of this loop or was taken inside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from sonde import _jax
from sonde.core.interpret.rebinding import Rebinding, rebound
from sonde.core.interpret.rewrite import rewrite
from sonde.core.interpret.trace import RULES, SiteTrace
from sonde.core.interpret.where import Loop
from sonde.core.marks.axes import Axis
from sonde.core.marks.operands import TOKEN_TYPE as INDEX_TYPE
from sonde.core.marks.operands import operands_of
from sonde.core.marks.primitive import bind_site, site_p
from sonde.core.marks.site import Site, View
from sonde.core.marks.site_search import has_sites, sites_inside
from sonde.core.session.session import capture_state


def scan_rule(trace: SiteTrace, args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """A scan."""
    handler, body = trace.handler, params["jaxpr"]
    length, reverse = params["length"], params["reverse"]
    xs = handler.loop_steps(length, reverse)
    steps = [_jax.mapped_type(_jax.typeof(x), length, 0) for x in xs]
    rewritten = rewrite(body, handler, steps, loop=Loop(None, length))
    inputs = rewritten.inputs(handler)
    once = rewritten.deduplicated
    # New constants come first and new scanned inputs last, so that the carry keeps its place.
    wider = _jax.scan_params(params, once.jaxpr, n_consts=len(inputs), n_xs=len(xs), n_ys=once.n_extra)
    operands = [*inputs, *args, *xs]
    outs = once.spread(_jax.scan_p.bind(*operands, **wider))
    outs = rewritten.known(outs, operands, {**wider, "jaxpr": rewritten.jaxpr})
    axis = Axis("scan", length, loop=object(), reverse=reverse)
    name = handler.position.loop_path()
    items = rewritten.items(outs, axis) if name is None else rewritten.items_of_named(outs, axis, name)
    if reverse:  # gradients are put in order when they are paired with their values
        items = [item.map_arrays(_turned) if item.view.is_value else item for item in items]
    handler.items += items
    return outs[: rewritten.n_outs]


def _turned(x: Any) -> Any:
    return jnp.flip(x, 0)


RULES[_jax.scan_p] = scan_rule


# ---------------------------------------------------------------------------------------------------------------------
# Differentiating a scan moves what does not change from iteration to iteration out of the loop, sites included; there
# a site would be met once and not once per iteration. An anchor, the number of the iteration, keeps it inside.
# ---------------------------------------------------------------------------------------------------------------------


class _Anchor(NamedTuple):
    """The operand that every site of a loop body gets.

    Attributes:
        number: Differs between all iterations of the loops around a site: the sum of the numbers of these iterations.
        n_loops: How many loops are around, up to the one that is differentiated.
    """

    number: Any
    n_loops: int = 1

    def in_iteration(self, index: Any) -> _Anchor:
        """The anchor in an iteration of a loop inside: it changes with that loop too."""
        return _Anchor(self.number + index, self.n_loops + 1)


def _bind_anchored(anchor: _Anchor, args: Sequence[Any], site: Site, view: View) -> list[Any]:
    """Binds a site with the anchor."""
    if view.anchored >= anchor.n_loops or view.role == "mark":
        return site_p.bind(*args, site=site, view=view)
    operands, anchored = operands_of(args, site, view), view.replace(anchored=anchor.n_loops)
    if view.anchored:  # in the loops inside, by a differentiation in the body
        operands.anchor = operands.anchor + anchor.number
        return bind_site(operands, site, anchored)
    operands.anchor = anchor.number
    if not view.is_value:  # a gradient that was taken in the loop body; differentiated again it is the identity
        bind_site(operands, site, anchored.replace(role="look"))
        return [] if view.role == "look" else operands.arrays
    state = capture_state()
    # New values, and gradients of a later differentiation, may differ between iterations.
    stays = site.grads or (state is not None and state.edits)
    if stays or view.role == "look":
        return bind_site(operands, site, anchored)
    outs = bind_site(operands, site, view.replace(role="mark"))
    bind_site(operands, site, anchored.replace(role="look"))
    return outs


def _anchored(body: _jax.Jaxpr) -> Any:
    """A loop body that takes the number of the iteration as its last input; None if its sites are anchored already."""
    if not any(f.view.role != "mark" and f.view.anchored <= len(f.loops) for f in sites_inside(body)):
        return None

    def anchoring(*inputs: Any) -> Rebinding:
        return Rebinding(_bind_anchored, _Anchor(inputs[-1]), in_iteration=_Anchor.in_iteration)

    return rebound(body, anchoring, back=[INDEX_TYPE], key="anchored")


def _anchoring(params: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
    """The numbers of the iterations, and the parameters of a scan that includes them; None if not needed."""
    body = _anchored(params["jaxpr"]) if has_sites(params["jaxpr"]) else None
    if body is None:
        return None
    return np.arange(params["length"], dtype=np.int32), _jax.scan_params(params, body, n_consts=0, n_xs=1, n_ys=0)


_jax.at_first_capture(lambda: _jax.prepare_scans_for_differentiation(_anchoring))
