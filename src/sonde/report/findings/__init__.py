"""What is wrong with a run, most serious first. One file per kind of trouble, thresholds in `thresholds`.

A rule is a function from the data of the sites to findings; it does not see the program.
"""

from __future__ import annotations

from collections.abc import Sequence

from sonde.report.arguments import Argument
from sonde.report.findings.attention import attention, attention_outliers, softmax_twice, wrong_axis
from sonde.report.findings.finding import SEVERITIES, Finding, Severity
from sonde.report.findings.flow import jumps, over_depth, over_iterations
from sonde.report.findings.inputs import inputs
from sonde.report.findings.nonfinite import nonfinite
from sonde.report.findings.peers import normalization_outliers, scale_outliers, weights
from sonde.report.findings.precision import near_overflow, underflow
from sonde.report.findings.units import constant, dead_units, no_gradient, saturated
from sonde.report.site_data import Examined
from sonde.tools.numerics.families import family
from sonde.tools.numerics.nonfinite import NonFinite

__all__ = ["SEVERITIES", "Finding", "Severity", "find"]

_RULES = (
    over_depth,
    over_iterations,
    jumps,
    near_overflow,
    underflow,
    dead_units,
    no_gradient,
    saturated,
    attention,
    wrong_axis,
    softmax_twice,
    attention_outliers,
    normalization_outliers,
    scale_outliers,
)
_NO_SITES = "Look into code as it is with inside=f or inside=model, or mark values with sonde.sow(value, name)."


def find(
    sites: Sequence[Examined],
    origin: NonFinite | None = None,
    arguments: Sequence[Argument] = (),
    *,
    failed: bool = False,
    finite_result: bool = True,
) -> tuple[Finding, ...]:
    """All findings, most serious first.

    Args:
        sites: The data of the sites, in program order.
        origin: What made the first value that is not finite, if there is one.
        arguments: The weights and inputs that the program was given.
        failed: Whether the program failed, so that missing data is not a finding.
        finite_result: Whether all that the program returned is finite: only then may -Inf be a mask.
    """
    findings = nonfinite(sites, origin, finite_result)
    if not sites and not failed:
        text = "There is nothing else to look at: the program has no sites."
        return (*findings, Finding("note", "no-sites", "", text if findings else text.replace(" else", ""), _NO_SITES))
    findings += _joined(inputs(arguments)) + _joined(weights(arguments))
    for rule in _RULES:
        findings += _joined(rule(sites))
    findings += _joined(constant(sites, arguments))
    kinds = list(dict.fromkeys(f.kind for f in findings))
    return tuple(sorted(findings, key=lambda f: (SEVERITIES.index(f.severity), kinds.index(f.kind), -f.weight)))


def _joined(found: Sequence[Finding]) -> list[Finding]:
    """One finding for all members of a family: twelve layers with the same problem are reported once."""
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for f in found:
        groups.setdefault((f.severity, f.kind, family(f.path)), []).append(f)
    joined = []
    for group in groups.values():
        worst = max(group, key=lambda f: f.weight)
        other_paths = tuple(f.path for f in group if f is not worst)
        joined.append(worst if not other_paths else _with_others(worst, other_paths))
    return joined


def _with_others(f: Finding, others: tuple[str, ...]) -> Finding:
    text = f"{f.text} The same in {len(others)} other site{'s' * (len(others) > 1)} of {family(f.path)}."
    return Finding(f.severity, f.kind, f.path, text, f.help, f.source, (*f.also, *others), f.weight)
