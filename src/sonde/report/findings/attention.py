"""Attention that is on one position only or on all alike, and a softmax over the wrong axis or taken twice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sonde.report.findings.finding import Finding
from sonde.report.findings.thresholds import ATTENTION_QUERIES, ATTENTION_SHARE, ENTROPY_RATIO, MEMBERS
from sonde.report.site_data import Examined, Step, is_shares
from sonde.report.traits import FLAT
from sonde.tools.numerics.families import families

_COLLAPSED = (
    "Every query looks at the same position: the scores are too large. Normalize queries and keys, scale by "
    "1/sqrt(head size), lower the learning rate. A first token that collects attention is common in trained language "
    "models and harmless."
)
_UNIFORM = (
    "The scores are all equal, so attention is a plain mean: look for queries or keys that are zero, positions without "
    "a code, or a mask in the wrong place."
)

_AXIS = (
    "Every row of attention, over the keys, and every row of class probabilities must add up to 1: use axis=-1, or the "
    "axis of the keys in this layout."
)
_TWICE = "Give the loss the logits themselves, or use a loss of probabilities."
_UNLIKE = "Compare the scores, their scale, the mask and the axis of the softmax with those of the other layers."
_LOOKS_AHEAD = 0.01  # the share of the attention that is on later positions
_NEARLY_FLAT = 0.999


def attention(sites: Sequence[Examined]) -> list[Finding]:
    """Heads in which every query attends to the same single position, or to all positions alike."""
    findings = []
    for site in sites:
        if not any(picture.kind == "attention" for picture in site.pictures) or not is_shares(site.values):
            continue
        steps = [step for step in site.values if "head_rows" in step.traits]
        collapsed = [step for step in steps if _collapsed(step)[0].size]
        if collapsed:
            step = max(collapsed, key=lambda step: len(_collapsed(step)[0]))
            heads, keys = _collapsed(step)
            to_first = all(np.all(_collapsed(other)[1] == 0) for other in collapsed)
            who, look = _heads(heads, step)
            text = f"{who} of {site.name}{_when(step, collapsed)} {look} at position {keys[0]} only."
            severity = "note" if to_first else "warning"
            findings.append(Finding(severity, "attention-collapsed", site.path, text, _COLLAPSED, site.source))
        uniform = [step for step in steps if _uniform(step).size]
        if uniform:
            step = max(uniform, key=lambda step: len(_uniform(step)))
            who, look = _heads(_uniform(step), step)
            text = f"{who} of {site.name}{_when(step, uniform)} {look} at all positions alike."
            findings.append(Finding("note", "attention-uniform", site.path, text, _UNIFORM, site.source))
    return findings


def wrong_axis(sites: Sequence[Examined]) -> list[Finding]:
    """Shares that add up to one along another axis than the last, where a softmax normally puts them."""
    findings: list[Finding] = []
    for site in sites:
        if not site.is_float or not site.values or is_shares(site.values):
            continue
        axis = next((axis for axis in (2, 3, 4) if _are_shares(site, axis)), None)
        if axis is not None:
            text = (
                f"{site.name} adds up to 1 over axis {-axis}, not over the last: a softmax over the wrong axis. "
                f"Its shape is {list(site.shape)}."
            )
            findings.append(Finding("warning", "softmax-axis", site.path, text, _AXIS, site.source, weight=1.0))
    return findings


def _are_shares(site: Examined, axis: int) -> bool:
    lines = [(step.trait(f"lines_of_shares_{axis}"), step.trait(f"lines_{axis}")) for step in site.values]
    return all(0 < shares == total for shares, total in lines)


def softmax_twice(sites: Sequence[Examined]) -> list[Finding]:
    """Probabilities that go into another softmax: the gradient of what goes in adds up to zero in every row."""
    findings: list[Finding] = []
    for site in sites:
        if not site.gradients or not is_shares(site.values) or site.shape[-1] < 3:
            continue
        rows = [(step.trait("rows_of_zero_sum"), step.trait("rows")) for step in site.gradients]
        if all(0 < zero == total for zero, total in rows):
            text = f"{site.name} holds probabilities, and goes into a softmax again, as if it held logits."
            findings.append(Finding("warning", "softmax-twice", site.path, text, _TWICE, site.source, weight=1.0))
    return findings


def attention_outliers(sites: Sequence[Examined]) -> list[Finding]:
    """A layer whose attention is unlike that of the others: not normalized, not masked, much sharper or flatter."""
    findings: list[Finding] = []
    for name, members in families((site.name, site) for site in sites if site.values).items():
        layers = [site for _, site in members]
        are_attention = sum("head_rows" in step.traits for site in layers for step in site.values[:1])
        if len(layers) < MEMBERS or are_attention < len(layers) - 1:
            continue
        odd = [site for site in layers if not is_shares(site.values)]
        if len(odd) == 1:
            if not any(_are_shares(odd[0], axis) for axis in (2, 3, 4)):
                text = f"The rows of {odd[0].name} do not add up to 1; those of all others of {name} do."
                findings.append(_unlike(odd[0], text))
            continue
        if odd or are_attention < len(layers):
            continue
        ahead = [_per_row(site, "head_future") for site in layers]
        entropies = [_per_row(site, "head_entropy", "head_open") for site in layers]
        looking = [site for site, share in zip(layers, ahead) if share > _LOOKS_AHEAD]
        if len(looking) == 1 and sorted(ahead)[-2] == 0:
            text = f"{looking[0].name} looks at later positions; all others of {name} are masked."
            findings.append(_unlike(looking[0], text))
            continue
        low, high = int(np.argmin(entropies)), int(np.argmax(entropies))
        usual = float(np.median(entropies))
        other_entropies = np.delete(entropies, low)
        if entropies[low] < usual / ENTROPY_RATIO and entropies[low] < float(np.min(other_entropies)) / 2:
            text = (
                f"{layers[low].name} is much sharper than the others of {name}: its entropy is {entropies[low]:.0%} of "
                f"that of equal weights, theirs {usual:.0%}."
            )
            findings.append(_unlike(layers[low], text))
        elif entropies[high] > 1 - FLAT and float(np.sort(entropies)[-2]) < _NEARLY_FLAT:
            text = f"{layers[high].name} gives all positions the same weight; the others of {name} do not."
            findings.append(_unlike(layers[high], text))
    return findings


def _per_row(site: Examined, name: str, rows: str = "head_rows") -> float:
    total = sum(float(np.sum(step.traits[rows])) for step in site.values if rows in step.traits)
    return sum(float(np.sum(step.traits.get(name, 0))) for step in site.values) / total if total else 0.0


def _unlike(site: Examined, text: str) -> Finding:
    return Finding("warning", "attention-outlier", site.path, text, _UNLIKE, site.source, weight=1.0)


def _when(step: Step, same: Sequence[Step]) -> str:
    """Which call and iteration, and in how many others it is the same."""
    if not step.when:
        return ""
    more = f" (and {len(same) - 1} more)" if len(same) > 1 else ""
    return f", {step.when}{more},"


def _collapsed(step: Step) -> tuple[np.ndarray, np.ndarray]:
    t = step.traits
    rows, most = t["head_rows"], t["head_key"]
    heads = np.flatnonzero((rows >= ATTENTION_QUERIES) & (most >= ATTENTION_SHARE * rows))
    return heads, t["head_which"][heads]


def _uniform(step: Step) -> np.ndarray:
    t = step.traits
    return np.flatnonzero((t["head_open"] >= ATTENTION_QUERIES) & (t["head_flat"] >= ATTENTION_SHARE * t["head_open"]))


def _heads(heads: np.ndarray, step: Step) -> tuple[str, str]:
    """Some heads of a layer in words, and the verb that goes with them."""
    total = len(step.traits["head_rows"])
    if total == 1:
        return "The attention", "looks"
    if len(heads) == total:
        return "Every head", "looks"
    if len(heads) == 1:
        return f"Head {heads[0]}", "looks"
    first, last = (heads[:4], "more") if len(heads) > 4 else (heads[:-1], heads[-1])
    return f"Heads {', '.join(map(str, first))} and {last}", "look"
