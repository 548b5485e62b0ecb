"""Which pictures a page has room for: attention and feature maps first, made smaller before any is left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from sonde.report.pictures import Picture

_FEW_POSITIONS, _LEAST_POSITIONS, _FEW_HEADS = 32, 16, 8


def fitting(pictures: Sequence[Picture], budget: int) -> list[Picture]:
    """The pictures that fit into a number of bytes, in the order given.

    Args:
        pictures: All there are.
        budget: How many bytes their levels may have together.
    """
    shrunk = list(pictures)
    while _size(shrunk) > budget:
        smaller = [_smaller(p) for p in shrunk]
        if _size(smaller) == _size(shrunk):
            break
        shrunk = smaller
    # Matrices matter least: they come last, and those that do not fit are left out.
    order = sorted(range(len(shrunk)), key=lambda i: shrunk[i].kind == "matrix")
    fitted, used = set(), 0
    for i in order:
        if used + shrunk[i].levels.size <= budget:
            fitted.add(i)
            used += shrunk[i].levels.size
    return [shrunk[i] for i in sorted(fitted)]


def _size(pictures: Sequence[Picture]) -> int:
    return sum(p.levels.size for p in pictures if p.kind != "matrix")


def _smaller(picture: Picture) -> Picture:
    """First fewer examples; then fewer positions, so that all heads stay; then fewer heads or channels."""
    levels = picture.levels
    if picture.kind == "matrix":
        return picture
    if levels.shape[0] > 1:
        levels = levels[:1]
    elif picture.kind == "features":
        levels = levels[..., : max(2, levels.shape[3] // 2)]
    elif max(levels.shape[2:]) > _FEW_POSITIONS:
        levels = levels[..., :_FEW_POSITIONS, :_FEW_POSITIONS]
    elif levels.shape[1] > _FEW_HEADS:
        levels = levels[:, : max(_FEW_HEADS, levels.shape[1] // 2)]
    else:
        levels = levels[:, : max(2, levels.shape[1] // 2), :_LEAST_POSITIONS, :_LEAST_POSITIONS]
    return dataclasses.replace(picture, levels=levels)
