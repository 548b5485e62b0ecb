"""A layer judged by the others of its family: by the scale of its values, gradients and weights, and by its form.

What is healthy differs from model to model, but the layers of one model resemble each other. So a layer is an outlier
if it is far from the median of its family and the others are near it; the more they differ among themselves, the
farther it must be.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from sonde.report.arguments import Argument
from sonde.report.findings.finding import Finding
from sonde.report.findings.thresholds import (
    CORRUPT_PEAK,
    END_RATIO,
    FEW_ELEMENTS,
    GRADIENT_OUTLIER_RATIO,
    MATRIX_RATIO,
    MEMBERS,
    OUTLIER_RATIO,
    OUTLIER_SPREAD,
    UNIT_SHARE,
    WEIGHT_RATIO,
)
from sonde.report.site_data import Examined, is_shares
from sonde.tools.numerics.families import Outlier, families, family, find_outlier

_OUTLIER = (
    "The other layers of this family agree with each other: compare this layer's code, initialization and weights with "
    "theirs. A factor that was applied twice, a missing normalization, or a conversion of one layer look like this."
)
_WEIGHTS = "Compare how this parameter was initialized or loaded with the others of its family."
_CONSTANT = (
    "Units with equal weights compute the same and get the same gradient, so they stay equal: initialize with "
    "random numbers."
)
_ZERO = (
    "Nothing passes here, and what comes before gets no gradient. A layer that starts at zero on purpose is fine "
    "before the first step, if all layers of its kind do."
)
_EQUAL = (
    "Layers that start equal get different gradients and may part, but they were meant to be independent: split the "
    "random key, jax.random.split(key, layers), instead of using it for each."
)
_CORRUPT = "One element this large decides the layer's result: look for a damaged file or a write to a wrong index."
_NORM = "Look for a normalization that was left out, or that runs over another axis than the last, as in x.mean(1)."
_MAY_BE_CONSTANT = ("scale", "gamma", "bias", "beta", "mask", "temperature")
_EMBEDDINGS = ("embed", "wte", "wpe", "position", "token", "vocab", "lookup", "table")


# ---------------------------------------------------------------------------------------------------------------------
# Sites
# ---------------------------------------------------------------------------------------------------------------------


def scale_outliers(sites: Sequence[Examined]) -> list[Finding]:
    """The first layer whose values have another scale than those of its family, and the last whose gradients do.

    Values that keep another scale from one layer on, as a residual stream does, are judged by how they change.
    """
    findings: list[Finding] = []
    for gradient in (False, True):
        measured = [
            (site.name, (site, scale))
            for site in sites
            if site.is_float
            and math.prod(site.shape) > 1
            and (scale := _scale(site, gradient)) > 0
            and not is_shares(site.values)
        ]
        # In the order of the program, the first is the cause; backward, gradients reach the last layer first.
        candidates = [
            finding
            for members in families(measured).values()
            if (finding := _scale_finding([member for _, member in members], gradient)) is not None
        ]
        order = {site.path: number for number, site in enumerate(sites)}
        candidates.sort(key=lambda finding: order[finding.path], reverse=gradient)
        findings += candidates[:1]
    return findings


def _scale(site: Examined, gradient: bool) -> float:
    steps = site.gradients if gradient else site.values
    scales = [step.rms for step in steps if math.isfinite(step.rms)]
    return float(np.median(scales)) if scales and len(scales) == len(steps) else math.nan


def _scale_finding(members: Sequence[tuple[Examined, float]], gradient: bool) -> Finding | None:
    if len(members) < MEMBERS or len({len(site.shape) for site, _ in members}) > 1:
        return None
    ordered = list(reversed(members)) if gradient else list(members)
    scales = [scale for _, scale in ordered]
    alone = find_outlier(scales, GRADIENT_OUTLIER_RATIO if gradient else OUTLIER_RATIO, OUTLIER_SPREAD)
    if alone is not None and alone.index in (0, len(scales) - 1) and not _is_far_end(alone, scales):
        alone = None
    kind = "gradient" if gradient else "value"
    if alone is not None:
        site, scale = ordered[alone.index]
        text = (
            f"The {kind} at {site.name} has an rms of {scale:.2g}, {_times(alone.ratio)} that of the others of "
            f"{family(site.name)} ({alone.usual:.2g})."
        )
        weight = abs(math.log10(alone.ratio))
        severity = "note" if not gradient and alone.ratio > 1 and _is_of_few_elements(site) else "warning"
        return Finding(severity, f"{kind}-outlier", site.path, text, _OUTLIER, site.source, weight=weight)
    if gradient or len(scales) < MEMBERS + 1:
        return None
    changes = [after / before for before, after in itertools.pairwise(scales)]
    step = find_outlier(changes, OUTLIER_RATIO, OUTLIER_SPREAD)
    if step is None or step.index == 0:  # from the first layer on, a stream has another scale than its embedding
        return None
    site, scale = ordered[step.index + 1]
    text = (
        f"The scale changes at {site.name}: its rms is {scale:.2g}, {_times(changes[step.index])} that of the layer "
        f"before; from layer to layer it is {step.usual:.2g} times elsewhere in {family(site.name)}."
    )
    weight = abs(math.log10(step.ratio))
    severity = "note" if _is_of_few_elements(site) else "warning"
    return Finding(severity, "value-outlier", site.path, text, _OUTLIER, site.source, weight=weight)


def _is_of_few_elements(site: Examined) -> bool:
    """Whether a few elements make up most of a value, as the massive activations of trained language models do."""
    shares = []
    for step in site.values:
        s = step.statistics
        peak = max(abs(s.min or 0.0), abs(s.max or 0.0))
        shares.append((peak / s.norm) ** 2 if s.norm else 0.0)
    return float(np.median(shares)) > FEW_ELEMENTS


def _is_far_end(outlier: Outlier, scales: Sequence[float]) -> bool:
    """Whether the first or the last layer is far from its neighbor, too: scales may drift through the layers."""
    neighbor = scales[1] if outlier.index == 0 else scales[-2]
    return _is_far(outlier) and abs(math.log(scales[outlier.index] / neighbor)) > math.log(END_RATIO)


def _is_far(outlier: Outlier) -> bool:
    """Whether even the first or the last layer, which differ from those between, would be an outlier."""
    return abs(math.log(outlier.ratio)) > math.log(END_RATIO)


def _times(ratio: float) -> str:
    return f"{ratio:.3g} times" if ratio >= 1 else f"1/{1 / ratio:.3g} of"


def normalization_outliers(sites: Sequence[Examined]) -> list[Finding]:
    """A layer whose rows are not normalized, where those of the others of its family are."""
    findings: list[Finding] = []
    measured = [(site.name, (site, share)) for site in sites if (share := _unit_share(site)) is not None]
    for name, members in families(measured).items():
        shares = [share for _, (_, share) in members if share >= UNIT_SHARE]
        odd = [site for _, (site, share) in members if share < UNIT_SHARE / 2]
        if len(odd) == 1 and len(shares) == len(members) - 1 >= MEMBERS - 1:
            text = f"The rows of {odd[0].name} are not normalized; those of all others of {name} are (rms 1)."
            findings.append(Finding("warning", "norm-outlier", odd[0].path, text, _NORM, odd[0].source, weight=1.0))
    return findings


def _unit_share(site: Examined) -> float | None:
    if not site.is_float or not site.shape or site.shape[-1] < 8:
        return None
    rows = sum(step.trait("rows") for step in site.values)
    return sum(step.trait("rows_of_unit") for step in site.values) / rows if rows else None


# ---------------------------------------------------------------------------------------------------------------------
# Weights
# ---------------------------------------------------------------------------------------------------------------------


def weights(arguments: Sequence[Argument]) -> list[Finding]:
    """Weights that are corrupt, constant, equal to those of another layer, or of another scale than their family's."""
    weight_arguments = [argument for argument in arguments if argument.is_weight]
    matrices = [a for a in weight_arguments if len([n for n in a.shape if n > 1]) > 1 and a.size >= 16]
    findings = [finding for rule in (_bad, _corrupt) for a in matrices if (finding := rule(a))]
    findings += _zero([a for a in weight_arguments if a.size > 1])
    findings += _constant(matrices)
    named = {finding.path for finding in findings}
    findings += _equal(matrices)
    findings += [finding for finding in _scale_of_weights(weight_arguments, matrices) if finding.path not in named]
    return findings


def _bad(argument: Argument) -> Finding | None:
    if not argument.nonfinite:
        return None
    text = f"{argument.nonfinite} of {argument.size} elements of the parameter {argument.path} are NaN or infinite."
    return Finding("problem", "bad-weights", argument.path, text, _CORRUPT, weight=argument.nonfinite)


def _corrupt(argument: Argument) -> Finding | None:
    peak = max(-argument.low, argument.high)
    # One element that is larger than all others together.
    if peak == 0 or argument.size < 64 or (peak / argument.rms) ** 2 < CORRUPT_PEAK * argument.size:
        return None
    if _is_embedding(argument) or peak < 1:  # rows of tokens that never occur
        return None
    text = f"One element of {argument.path} is {peak:.3g}, larger than all {argument.size - 1} others together."
    return Finding("warning", "corrupt-weights", argument.path, text, _CORRUPT, weight=peak / argument.rms)


def _zero(arrays: Sequence[Argument]) -> list[Finding]:
    """Parameters that are zero, where those of all other layers are not."""
    findings: list[Finding] = []
    for name, members in families((a.path, a) for a in arrays).items():
        zero = [a for _, a in members if a.low == a.high == 0 and not a.nonfinite]
        if len(zero) == 1 and len(members) > 2:
            text = f"Every element of the parameter {zero[0].path} is zero; those of the others of {name} are not."
            findings.append(Finding("warning", "zero-weights", zero[0].path, text, _ZERO, weight=1.0))
    return findings


def _constant(matrices: Sequence[Argument]) -> list[Finding]:
    """Matrices of one number, where the other layers have several: all layers may have scales that start alike."""
    varied = Counter(family(a.path) for a in matrices if a.low != a.high)
    findings: list[Finding] = []
    for argument in matrices:
        is_alone = family(argument.path) == argument.path
        if argument.low != argument.high or argument.high == 0 or argument.nonfinite:
            continue
        if any(word in argument.path.lower() for word in _MAY_BE_CONSTANT):
            continue
        if is_alone or varied[family(argument.path)]:
            text = f"Every element of the parameter {argument.path} is {argument.high:.4g}."
            findings.append(Finding("warning", "constant-weights", argument.path, text, _CONSTANT, weight=1.0))
    return findings


def _equal(matrices: Sequence[Argument]) -> list[Finding]:
    findings: list[Finding] = []
    for name, members in families((a.path, a) for a in matrices if a.low != a.high).items():
        groups: dict[str, list[Argument]] = {}
        for _, argument in members:
            groups.setdefault(argument.digest, []).append(argument)
        for same in groups.values():
            if len(same) > 1:
                layers = f"All {len(same)} layers" if len(same) == len(members) else ", ".join(a.path for a in same)
                text = f"{layers} of {name} have the same weights, element by element."
                also = tuple(a.path for a in same[1:])
                findings.append(Finding("warning", "equal-weights", same[0].path, text, _EQUAL, "", also, len(same)))
    return findings


def _scale_of_weights(found: Sequence[Argument], matrices: Sequence[Argument]) -> list[Finding]:
    """Outliers of the norm, per family; of models with few layers, among all matrices, by their gain."""
    findings: list[Finding] = []
    judged: set[str] = set()
    for name, members in families((a.path, a) for a in found if a.size > 1).items():
        alike = [a for _, a in members if a.rms > 0]
        if len({len(a.shape) for a in alike}) != 1:
            continue
        if len(members) < MEMBERS or len(alike) < len(members) - 1:
            continue
        judged |= {a.path for a in alike}
        measure = _gain if len({a.shape for a in alike}) > 1 else _rms
        findings += _of_weights(alike, measure, f"the others of {name}", WEIGHT_RATIO)
    compared = [a for a in matrices if a.rms > 0 and not _is_embedding(a)]
    if len(compared) > MEMBERS:
        pooled = _of_weights(compared, _gain, "the other matrices of the model", MATRIX_RATIO)
        findings += [finding for finding in pooled if finding.path not in judged]
    return findings


def _of_weights(
    members: Sequence[Argument], measure: Callable[[Argument], float], others: str, least: float
) -> Iterator[Finding]:
    outlier = find_outlier([measure(a) for a in members], least, OUTLIER_SPREAD)
    if outlier is None or (outlier.index in (0, len(members) - 1) and least == WEIGHT_RATIO and not _is_far(outlier)):
        return
    argument = members[outlier.index]
    text = (
        f"The weights of {argument.path} have an rms of {argument.rms:.2g}: in scale {_times(outlier.ratio)} that of "
        f"{others}."
    )
    yield Finding("warning", "weight-outlier", argument.path, text, _WEIGHTS, weight=abs(math.log10(outlier.ratio)))


def _rms(argument: Argument) -> float:
    return argument.rms


def _gain(argument: Argument) -> float:
    """By how much a matrix scales a random vector: the rms times the root of the number of inputs.

    Which axes are inputs is not known: the geometric mean over the axes stands for them.
    """
    if len(argument.shape) < 2:
        return argument.rms
    return argument.rms * math.sqrt(argument.size ** (1 - 1 / len(argument.shape)))


def _is_embedding(argument: Argument) -> bool:
    return any(word in argument.path.lower() for word in _EMBEDDINGS)
