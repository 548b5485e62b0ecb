"""How the scale of values and gradients changes: over depth, over the iterations of a loop, from site to site."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sonde.report.findings.finding import Finding
from sonde.report.findings.thresholds import (
    DEPTH,
    DEPTH_RATIO,
    DEPTH_RATIO_SEVERE,
    JUMP_RATIO,
    JUMP_SIZE,
    LOOP_GRADIENT_RATIO,
    LOOP_RATIO,
)
from sonde.report.site_data import Examined, Step, is_shares
from sonde.tools.numerics.families import families, layer

_VANISH = (
    "Layers whose gradient vanishes do not learn: add residual connections or normalization, use an activation that "
    "does not saturate, or a larger initialization (variance 1 or 2 over the number of inputs)."
)
_EXPLODE = (
    "Clip the gradient by its norm, lower the learning rate, normalize between the layers, or make the initialization "
    "smaller."
)
_VALUES_EXPLODE = (
    "Normalize between the layers, scale residual branches by 1/sqrt(depth), or make the initialization smaller."
)
_VALUES_VANISH = "Make the initialization larger, or normalize between the layers: values this small carry no signal."
_LOOP = "What a loop multiplies in each iteration grows without bound: normalize, clip or gate what is carried over."
_LOOP_GRADIENT = (
    "Gradients through many iterations fade or blow up: clip them, use gates with a forget bias of 1, or truncate the "
    "loop."
)
_JUMP = (
    "A sudden change of scale is often a missing normalization, a sum in place of a mean, or inputs without scaling."
)


def over_depth(sites: Sequence[Examined]) -> list[Finding]:
    """Scales that vanish or explode from one end of a family of numbered layers to the other.

    Of several families of the same layers, such as `blocks/*/attn` and `blocks/*/mlp`, the worst is reported.
    """
    worst: dict[tuple[str, str], Finding] = {}
    for gradient in (False, True):
        scales = [(site.name, (site, _scale(site.gradients if gradient else site.values))) for site in sites]
        measured = [(name, x) for name, x in scales if x[0].is_float and not math.isnan(x[1])]
        for name, members in families(measured).items():
            finding = _depth_finding(members, gradient) if _are_layers(members) else None
            if finding is not None:
                key = (name.partition("*")[0], finding.kind)
                if key not in worst or finding.weight > worst[key].weight:
                    worst[key] = finding
    return list(worst.values())


def _are_layers(members: Sequence[tuple[str, tuple[Examined, float]]]) -> bool:
    """Whether these are many enough, and no tuple of different things, such as an input, a kernel and a bias."""
    arrays = [site for _, (site, _) in members]
    is_tuple = len({site.path for site in arrays}) == 1 and len({site.shape for site in arrays}) > 1
    return len(members) >= DEPTH and not is_tuple


def _depth_finding(members: Sequence[tuple[str, tuple[Examined, float]]], gradient: bool) -> Finding | None:
    # In the direction of the computation: values go up the layers, gradients down.
    ordered = list(reversed(members)) if gradient else list(members)
    (first, (_, start)), (last, (end_site, end)) = ordered[0], ordered[-1]
    if start == 0:
        return None
    ratio = end / start
    if 1 / DEPTH_RATIO < ratio < DEPTH_RATIO:
        return None
    size = math.inf if ratio == 0 else max(ratio, 1 / ratio)
    severity = "problem" if size > DEPTH_RATIO_SEVERE else "warning"
    verb = "vanish" if ratio < 1 else "explode"
    kind = "gradients" if gradient else "values"
    rest = first[len(layer(first)) :].lstrip("/")
    text = (
        f"{kind.capitalize()} {verb} from {layer(first)} to {layer(last)}"
        f"{f' (at {rest})' if rest else ''}: their rms goes from {start:.2g} to {end:.2g}."
    )
    hint = (_VANISH if ratio < 1 else _EXPLODE) if gradient else (_VALUES_VANISH if ratio < 1 else _VALUES_EXPLODE)
    return Finding(
        severity, f"{kind}-{verb}", end_site.path, text, hint, end_site.source, (first,), weight=math.log10(size)
    )


def over_iterations(sites: Sequence[Examined]) -> list[Finding]:
    """Values that grow, and gradients that fade or blow up, over the iterations of a loop."""
    findings = []
    for site in sites:
        for gradient, steps in ((False, site.values), (True, site.gradients)):
            loop = [s for s in steps if s.row.iteration and s.row.call == steps[0].row.call]
            scales = [(s, s.rms) for s in loop if s.rms > 0]
            if site.is_float and len(scales) >= DEPTH:
                finding = _loop_finding(site, scales, gradient)
                findings += [finding] if finding else []
    return findings


def _loop_finding(site: Examined, scales: Sequence[tuple[Step, float]], gradient: bool) -> Finding | None:
    if gradient:
        scales = list(reversed(scales))
    (first, start), (last, end) = scales[0], scales[-1]
    ratio = end / start
    # Something that adds up, such as a counter, grows no faster than the number of iterations.
    limit = LOOP_GRADIENT_RATIO if gradient else LOOP_RATIO + 10 * len(scales)
    if ratio < limit and not (gradient and ratio < 1 / limit):
        return None
    what = "Gradients" if gradient else "Values"
    verb = ("vanish" if ratio < 1 else "explode") if gradient else "grow"
    text = f"{what} of {site.name} {verb} over the loop: rms {start:.2g} in {first.when} and {end:.2g} in {last.when}."
    kind = f"loop-{what.lower()}-{verb}"
    hint = _LOOP_GRADIENT if gradient else _LOOP
    return Finding("warning", kind, site.path, text, hint, site.source, weight=abs(math.log10(ratio)))


def jumps(sites: Sequence[Examined]) -> list[Finding]:
    """Values of a very different scale than those at the site before.

    Only a note: the site before may be on another branch of the program, so the scales need not agree.
    """
    findings, before = [], None
    for site in sites:
        if not site.is_float or not site.values or site.values[0].statistics.size < JUMP_SIZE:
            continue
        if is_shares(site.values):  # the more shares, the smaller each is
            continue
        scale = site.values[0].rms
        if math.isnan(scale) or scale == 0:
            continue
        if before is not None:
            ratio = scale / before[1]
            if not 1 / JUMP_RATIO < ratio < JUMP_RATIO:
                text = (
                    f"The scale changes from {before[1]:.2g} at {before[0].name} to {scale:.2g} at {site.name}, "
                    f"{max(ratio, 1 / ratio):.0e} times."
                )
                findings.append(
                    Finding(
                        "note",
                        "jump",
                        site.path,
                        text,
                        _JUMP,
                        site.source,
                        (before[0].path,),
                        abs(math.log10(ratio)),
                    )
                )
        before = (site, scale)
    return findings


def _scale(steps: Sequence[Step]) -> float:
    """The rms over all calls and iterations."""
    scales = [s.rms for s in steps if not math.isnan(s.rms)]
    # Factored, so that squares of small gradients do not underflow.
    top = max(scales, default=math.nan)
    return top * math.sqrt(sum((x / top) ** 2 for x in scales) / len(scales)) if scales and top > 0 else top
