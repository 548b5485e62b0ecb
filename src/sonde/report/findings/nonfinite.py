"""The first NaN or Inf of the run, forward or backward."""

from __future__ import annotations

from collections.abc import Sequence

from sonde.report.findings.finding import Finding
from sonde.report.site_data import Examined, Step
from sonde.tools.numerics.events import Event
from sonde.tools.numerics.nonfinite import NonFinite, first_of

_OVERFLOW = (
    "An infinity comes from a number that grew too large: look at the ranges before it; compute it in a wider dtype, "
    "subtract the maximum before exp, or normalise what goes in."
)
_NAN = (
    "A NaN without an infinity before it comes from 0/0, inf-inf, the root or logarithm of a negative number, or is in "
    "the data or the parameters: look at the inputs of this line."
)
_BACKWARD = (
    "The values are finite here and the gradient is not: the derivative of sqrt, log, norm or division at 0 is "
    "infinite. Add a small number inside, and in jnp.where guard the argument as well as the result."
)
_MASK = "Masks made of -Inf are fine as long as every row keeps a finite element; a large finite number is safer."


def nonfinite(sites: Sequence[Examined], events: Sequence[Event], finite_result: bool) -> list[Finding]:
    """At most one problem, and a note on values that hold -Inf as masks do: it is in no result."""
    first = first_of(events, context=4)
    masks = [(site, step) for site in sites for step in (*site.values, *site.gradients) if step.trait("minus_inf")]
    if first is not None:
        return [_problem(first, masks)]
    if not masks:
        return []
    site, step = masks[0]
    n, size = int(step.trait("minus_inf")), step.statistics.size
    text = f"{site.name} holds -Inf in {n} of {size} elements"
    paths = tuple(dict.fromkeys(s.path for s, _ in masks if s.path != site.path))
    if not finite_result:
        text += ", and a result of the program is not finite"
    if n == size or not finite_result:
        return [Finding("problem", "nonfinite", site.path, f"{text}.", _OVERFLOW, site.source, paths)]
    return [
        Finding(
            "note", "minus-inf", site.path, f"{text}, as masks do; every result is finite.", _MASK, site.source, paths
        )
    ]


def _problem(first: NonFinite, masks: Sequence[tuple[Examined, Step]]) -> Finding:
    what = "NaN" if first.nans and not first.infs else "Inf" if not first.nans else "NaN and Inf"
    where = f"the gradient at {first.path}" if first.gradient else first.path
    call = f", call {first.call}" if first.call else ""
    loop = f", iteration {', '.join(map(str, first.iteration))}" if first.iteration else ""
    text = (
        f"First {what} in {where}{call}{loop}, line {first.source.rpartition(':')[2]}: "
        f"{first.nans + first.infs} of {first.size} elements."
    )
    before = [
        r for r in first.before if (r.path, r.gradient, r.iteration) != (first.path, first.gradient, first.iteration)
    ]
    if before:
        r = before[-1]
        text += f" Just before, {'the gradient at ' * r.gradient}{r.path} is in {r.low:.3g} to {r.high:.3g}."
    if masks and not first.gradient:
        text += f" {masks[0][0].name} holds -Inf."
    hint = _BACKWARD if first.gradient else _OVERFLOW if first.infs else _NAN
    return Finding("problem", "nonfinite", first.path, text, hint, first.source)
