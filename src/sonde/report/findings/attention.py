"""Attention that is on one position only, or on all alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sonde.report.findings.finding import Finding
from sonde.report.findings.thresholds import ATTENTION_QUERIES, ATTENTION_SHARE
from sonde.report.site_data import Examined, Step, is_shares

_COLLAPSED = (
    "Every query looks at the same position: the scores are too large. Normalise queries and keys, scale by "
    "1/sqrt(head size), lower the learning rate. A first token that collects attention is common in trained language "
    "models and harmless."
)
_UNIFORM = (
    "The scores are all equal, so attention is a plain mean: look for queries or keys that are zero, positions without "
    "a code, or a mask in the wrong place."
)


def attention(sites: Sequence[Examined]) -> list[Finding]:
    """Heads in which every query attends to the same single position, or to all positions alike."""
    found = []
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
            found.append(Finding(severity, "attention-collapsed", site.path, text, _COLLAPSED, site.source))
        uniform = [step for step in steps if _uniform(step).size]
        if uniform:
            step = max(uniform, key=lambda step: len(_uniform(step)))
            who, look = _heads(_uniform(step), step)
            text = f"{who} of {site.name}{_when(step, uniform)} {look} at all positions alike."
            found.append(Finding("note", "attention-uniform", site.path, text, _UNIFORM, site.source))
    return found


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
