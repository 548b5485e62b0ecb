"""Attention that looks at one position only, or at all alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sonde.report.examined import Examined, Step, is_shares
from sonde.report.findings.finding import Finding
from sonde.report.findings.thresholds import ATTENTION_QUERIES, ATTENTION_SHARE

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
    """Heads whose every query looks at the same one position, or at all positions alike."""
    found = []
    for site in sites:
        if not any(picture.kind == "attention" for picture in site.pictures) or not is_shares(site.values):
            continue
        step = site.values[-1]
        if "head_rows" not in step.traits:
            continue
        collapsed, keys = _collapsed(step)
        if collapsed.size:
            to_first = bool(np.all(keys == 0))
            text = f"{_heads(collapsed, step)} of {site.name} looks at position {keys[0]} only."
            severity = "note" if to_first else "warning"
            found.append(Finding(severity, "attention-collapsed", site.path, text, _COLLAPSED, site.source))
        uniform = _uniform(step)
        if uniform.size:
            text = f"{_heads(uniform, step)} of {site.name} looks at all positions alike."
            found.append(Finding("note", "attention-uniform", site.path, text, _UNIFORM, site.source))
    return found


def _collapsed(step: Step) -> tuple[np.ndarray, np.ndarray]:
    t = step.traits
    rows, most = t["head_rows"], t["head_key"]
    heads = np.flatnonzero((rows >= ATTENTION_QUERIES) & (most >= ATTENTION_SHARE * rows))
    return heads, t["head_which"][heads]


def _uniform(step: Step) -> np.ndarray:
    t = step.traits
    return np.flatnonzero((t["head_open"] >= ATTENTION_QUERIES) & (t["head_flat"] >= ATTENTION_SHARE * t["head_open"]))


def _heads(heads: np.ndarray, step: Step) -> str:
    total = len(step.traits["head_rows"])
    if total == 1:
        return "The attention"
    if len(heads) == total:
        return "Every head"
    shown = ", ".join(map(str, heads[:4])) + (", ..." if len(heads) > 4 else "")
    return f"Head {shown}"
