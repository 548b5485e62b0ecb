"""Units that never fire, values that do not vary, outputs at the ends of their range, gradients that are zero."""

from __future__ import annotations

from collections.abc import Sequence

from sonde.report.arguments import Argument
from sonde.report.findings.finding import Finding
from sonde.report.findings.thresholds import CONSTANT_SIZE, DEAD_EXAMPLES, DEAD_SHARE, MEMBERS, SATURATED_SHARE
from sonde.report.site_data import Examined, Step, is_shares
from sonde.tools.numerics.families import families

_DEAD = (
    "Units that never fire get no gradient and stay dead: lower the learning rate, use leaky_relu or gelu, normalize "
    "before the activation, or check for a large negative bias."
)
_SATURATED = (
    "At the ends of tanh and sigmoid the gradient is nearly zero: make the initialization or the inputs smaller, or "
    "normalize before the activation."
)
_ZERO = (
    "Nothing passes here. A layer that starts at zero on purpose is fine before the first step; later look for a mask "
    "that hides everything, a dead layer before it, or inputs that are missing."
)
_CONSTANT = (
    "Every element is the same number: look for a broadcast that replaced the data, or a normalization of one element."
)
_NO_GRADIENT = (
    "What comes before this site learns nothing from this loss: look for dead units after it, a product with zeros, a "
    "saturated activation, or rounding to zero in half precision. Before a layer that starts at zero it is zero until "
    "the first step."
)
_UNREACHED = (
    "The loss does not depend on them in a differentiable way. That is as it should be for what is only looked at; "
    "otherwise look for stop_gradient, argmax, rounding, or a result that is not used."
)


def dead_units(sites: Sequence[Examined]) -> list[Finding]:
    """Units that are zero in every example and position."""
    findings = []
    for site in sites:
        if not site.is_float or is_shares(site.values):  # zeros are expected in one-hot codes and masked attention
            continue
        step, share = max(((s, _dead_share(s)) for s in site.values), key=lambda x: x[1], default=(None, 0.0))
        if step is not None and DEAD_SHARE <= share < 1:
            where = f" in {step.when}" if step.when else ""
            text = f"{share:.0%} of the units in {site.name} never fire{where}."
            findings.append(Finding("warning", "dead-units", site.path, text, _DEAD, site.source, weight=share))
    return findings


def _dead_share(step: Step) -> float:
    s = step.statistics
    if not s.units or s.dead is None or s.size < DEAD_EXAMPLES * s.units or s.min is None or s.min < 0:
        return 0.0
    return s.dead / s.units


def constant(sites: Sequence[Examined], arguments: Sequence[Argument]) -> list[Finding]:
    """Values that are zero everywhere, or the same number everywhere, in every call and iteration.

    Biases start at zero: only a note for what looks like an argument that is zero.
    """
    findings = []
    zero_shapes = {argument.shape for argument in arguments if argument.low == argument.high == 0}
    for site in sites:
        s = [step.statistics for step in site.values]
        if not site.is_float or not s or s[0].size < CONSTANT_SIZE or any(x.nonfinite for x in s):
            continue
        if is_shares(site.values):  # `attention` reports equal shares
            continue
        if all(x.zeros == x.size for x in s):
            is_given = site.shape in zero_shapes
            text = f"{site.name} is zero everywhere{', as an argument of its shape is' if is_given else ''}."
            severity = "note" if is_given else "warning"
            findings.append(Finding(severity, "zero-values", site.path, text, _ZERO, site.source))
        elif all(x.min == x.max for x in s):
            text = f"{site.name} is {s[0].min:.4g} everywhere."
            findings.append(Finding("note", "constant-values", site.path, text, _CONSTANT, site.source))
    return findings


def saturated(sites: Sequence[Examined]) -> list[Finding]:
    """Outputs of tanh and sigmoid that are nearly all at the ends of the range."""
    findings = []
    for site in sites:
        if not site.is_float or is_shares(site.values):
            continue
        step, share = max(((s, _saturated_share(s)) for s in site.values), key=lambda x: x[1], default=(None, 0.0))
        if step is not None and share >= SATURATED_SHARE:
            text = f"{share:.0%} of the elements of {site.name} are saturated: at the ends of {_range(step)}."
            findings.append(Finding("warning", "saturated", site.path, text, _SATURATED, site.source, weight=share))
    return findings


def _range(step: Step) -> str:
    return "-1 to 1" if (step.statistics.min or 0) < 0 else "0 to 1"


def _saturated_share(step: Step) -> float:
    s = step.statistics
    if s.size < CONSTANT_SIZE or s.min is None or s.max is None or not (s.min >= -1 and s.max <= 1):
        return 0.0
    finite = s.size - (s.nonfinite or 0)
    if step.trait("whole") >= finite:  # signs, flags and codes have only whole values and are not activations
        return 0.0
    if s.min < 0:
        return step.trait("near_one") / finite if s.min < -0.9 or s.max > 0.9 else 0.0
    # For negative inputs a relu is exactly zero and a sigmoid never is; small numbers alone do not prove a sigmoid.
    if s.max < 0.9 or (s.zeros or 0) > s.size // 4 or step.trait("near_one") < finite / 10:
        return 0.0
    return (step.trait("near_one") + step.trait("near_zero")) / finite


def no_gradient(sites: Sequence[Examined]) -> list[Finding]:
    """Gradients that are zero everywhere; and, in one note, sites that got none."""
    findings = []
    for site in sites:
        s = [step.statistics for step in site.gradients]
        if s and s[0].size and all(x.zeros == x.size for x in s):
            text = f"The gradient at {site.name} is zero everywhere."
            findings.append(Finding("warning", "zero-gradients", site.path, text, _NO_GRADIENT, site.source))
    findings += _stopped(sites)
    stopped = {finding.path for finding in findings}
    unreached = [
        site
        for site in sites
        if site.path not in stopped and site.unreached and site.is_float and not site.only_looked_at
    ]
    if unreached and any(site.gradients for site in sites):
        first, *later = unreached
        and_others = f" and {len(later)} other{'s' * (len(later) > 1)}" if later else ""
        text = f"No gradient comes to {first.name}{and_others}: the loss does not use {'them' if later else 'it'}."
        also = tuple(site.path for site in later)
        findings.append(Finding("note", "unreached", first.path, text, _UNREACHED, first.source, also))
    return findings


def _stopped(sites: Sequence[Examined]) -> list[Finding]:
    """One layer that gets no gradient, where all others of its family do."""
    findings: list[Finding] = []
    named = [(site.name, site) for site in sites if site.is_float and not site.only_looked_at]
    for name, members in families(named).items():
        odd = [site for _, site in members if site.unreached or not site.gradients]
        # Before the first layer may be nothing that is differentiated, and after the last nothing that is used.
        if len(odd) == 1 and len(members) >= MEMBERS and odd[0] not in (members[0][1], members[-1][1]):
            text = f"No gradient comes to {odd[0].name}; all others of {name} get one."
            findings.append(Finding("warning", "stopped-gradient", odd[0].path, text, _UNREACHED, odd[0].source))
    return findings[:1]
