"""The operation that made a result NaN or Inf, forward or backward."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sonde.report.findings.finding import Finding
from sonde.report.site_data import Examined, Step
from sonde.tools.numerics.nonfinite import NonFinite

_OVERFLOW = (
    "An infinity comes from a number that grew too large: look at the ranges before it; compute it in a wider dtype, "
    "subtract the maximum before exp, or normalize what goes in."
)
_POLE = (
    "An infinity of a logarithm or a quotient comes from a zero: add a small number, or replace the zeros before the "
    "operation. A where after it hides the infinity and leaves NaN in the gradient."
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


_DISCARDED = (
    "A where, a mask or an unused branch drops it. Its gradient may be NaN all the same: guard the argument too."
)


def has_bad_values(site: Examined) -> bool:
    """Whether a value or gradient is NaN or Inf at a site; -Inf alone may be a mask."""
    return any(step.trait("nan") or step.trait("plus_inf") for step in (*site.values, *site.gradients))


def nonfinite(sites: Sequence[Examined], origin: NonFinite | None, finite_result: bool) -> list[Finding]:
    """The operation that made a result not finite, as a problem; what is discarded or masks something, as a note."""
    bad = next(filter(has_bad_values, sites), None)
    masks = [(site, step) for site in sites for step in (*site.values, *site.gradients) if step.trait("minus_inf")]
    if origin is not None and not origin.discarded:
        return [_problem(origin, masks)]
    if not finite_result:
        where = "" if bad is None else f" {bad.name} is the first site where a value or gradient is not."
        text = f"A result of the program is not finite.{where}"
        path, source = ("", "") if bad is None else (bad.path, bad.source)
        return [Finding("problem", "nonfinite", path, text, _NAN, source)]
    findings: list[Finding] = []
    if bad is not None:
        made = "" if origin is None else f" {_sentence(origin)}"
        text = f"{bad.name} is not finite in places, and no result of the program is affected.{made}"
        findings.append(Finding("note", "nonfinite-discarded", bad.path, text, _DISCARDED, bad.source))
    if masks:
        site, step = masks[0]
        count, size = int(step.trait("minus_inf")), step.statistics.size
        text = f"{site.name} holds -Inf in {count} of {size} elements; every result is finite."
        also = tuple(dict.fromkeys(other.path for other, _ in masks if other.path != site.path))
        findings.append(Finding("note", "minus-inf", site.path, text, _MASK, site.source, also))
    return findings


def _problem(origin: NonFinite, masks: Sequence[tuple[Examined, Step]]) -> Finding:
    kind = "NaN" if origin.nans and not origin.infs else "Inf" if not origin.nans else "NaN and Inf"
    named = f"the gradient at {origin.path}" if origin.gradient else origin.path
    call = f", call {origin.call}" if origin.call else ""
    loop = f", iteration {', '.join(map(str, origin.iteration))}" if origin.iteration else ""
    place = ", ".join(filter(None, (f"in {named}" if named else "", f"{call}{loop}"[2:], _line(origin))))
    place = place if named or not place else f"on {place}"
    text = f"First {kind} {place}: {_sentence(origin)} {origin.nans + origin.infs} of {origin.size} elements."
    before = [r for r in origin.before if (r.path, r.gradient) != (origin.path, origin.gradient)]
    if before:
        last = before[-1]
        text += (
            f" Just before, {'the gradient at ' * last.gradient}{last.path} is in {last.low:.3g} to {last.high:.3g}."
        )
    if origin.results:
        more = f" and {len(origin.results) - 2} more" if len(origin.results) > 2 else ""
        text += f" Not finite at the end: {', '.join(origin.results[:2])}{more}."
    if masks and masks[0][0].path != origin.path and not origin.gradient:
        text += f" {masks[0][0].name} holds -Inf."
    of_infinity = _POLE if _is_pole(origin) else _OVERFLOW
    hint = _BACKWARD if origin.gradient else of_infinity if origin.infs else _NAN
    return Finding("problem", "nonfinite", origin.path, text, hint, origin.source)


def _line(origin: NonFinite) -> str:
    return f"line {origin.source.rpartition(':')[2]}" if origin.source else ""


def _is_pole(origin: NonFinite) -> bool:
    """Whether an infinity comes from a zero and not from a large number: log(0), 1 / 0."""
    return bool(re.search(r"(^log|^rsqrt)\w*\(|/ -?0$", origin.element))


def _sentence(origin: NonFinite) -> str:
    """The operation with its operands in numbers."""
    operands = origin.element or " and ".join(origin.operands)
    if origin.operation in ("argument", "constant"):
        return f"it is in {origin.operation} {operands}."
    if origin.element.startswith(f"{origin.operation}("):
        return f"{origin.element}."
    return f"{origin.operation} of {operands}."
