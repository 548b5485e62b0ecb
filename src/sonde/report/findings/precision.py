"""Numbers that hardly fit their dtype."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp

from sonde.report.findings.finding import Finding
from sonde.report.findings.thresholds import OVERFLOW_MARGIN, SUBNORMAL_SHARE
from sonde.report.site_data import Examined, Step, masked

_OVERFLOW = "The next larger number is an infinity: use bfloat16 or float32 here, or scale or normalize before it."
_UNDERFLOW = "Small gradients become zero in this dtype: scale the loss up and the gradients down, or use bfloat16."


def near_overflow(sites: Sequence[Examined]) -> list[Finding]:
    """Values and gradients within a small factor of the largest number of their dtype."""
    findings = []
    for site in sites:
        if not site.is_float or jnp.finfo(site.dtype).bits < 16:  # 8-bit formats use their full range on purpose
            continue
        limit = float(jnp.finfo(site.dtype).max)
        steps = [
            (step, gradient) for gradient in (False, True) for step in (site.gradients if gradient else site.values)
        ]
        step, gradient = max(steps, key=lambda x: _peak(x[0]), default=(None, False))
        if step is not None and _peak(step) > limit / OVERFLOW_MARGIN:
            subject = f"The gradient at {site.name}" if gradient else site.name
            text = f"{subject} reaches {_peak(step):.3g}; {site.dtype} ends at {limit:.3g}."
            weight = _peak(step) / limit
            findings.append(Finding("warning", "near-overflow", site.path, text, _OVERFLOW, site.source, weight=weight))
    return findings


def _peak(step: Step) -> float:
    s = step.statistics
    if s.max is None or s.min is None or s.size == s.nonfinite:
        return 0.0
    return max(s.max, 0.0 if masked(s) else -s.min)


def underflow(sites: Sequence[Examined]) -> list[Finding]:
    """Half-precision gradients of which most elements are too small for it."""
    findings = []
    for site in sites:
        if not site.is_float or jnp.finfo(site.dtype).bits > 16:
            continue
        share = max((_subnormal_share(step) for step in site.gradients), default=0.0)
        if share >= SUBNORMAL_SHARE:
            text = f"{share:.0%} of the gradient at {site.name} is too small for {site.dtype} to hold exactly."
            findings.append(Finding("warning", "underflow", site.path, text, _UNDERFLOW, site.source, weight=share))
    return findings


def _subnormal_share(step: Step) -> float:
    s = step.statistics
    nonzero = s.size - (s.zeros or 0)
    return step.trait("subnormal") / nonzero if nonzero else 0.0
