"""Pairs the sites of two programs that have different names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sonde.tools.reading import Seen

_Runs = Mapping[tuple[str, int, bool], Seen]


def matching_names(ours: _Runs, theirs: _Runs, given: Mapping[str, str]) -> dict[str, str]:
    """For paths of the first program, the corresponding paths of the second.

    Args:
        ours: What was seen in the first program, by path, call and whether it is a gradient.
        theirs: What was seen in the second.
        given: Pairs that are known.

    Raises:
        ValueError: A given path is not one of the program's.
    """
    for which, run, paths in (("first", ours, given), ("second", theirs, given.values())):
        known = {key[0] for key in run}
        unknown = [path for path in paths if path not in known]
        if unknown:
            raise ValueError(f"compare(names=...): the {which} program has no site {unknown[0]!r}")
    taken = set(given.values())
    first = _kinds(ours, {k[0] for k in theirs} | set(given))
    second = _kinds(theirs, {k[0] for k in ours} | taken)
    found = dict(given)
    for kind, paths in first.items():
        others = second.get(kind, [])
        if len(paths) == len(others):
            found |= dict(zip(paths, others))
    return found


def _kinds(run: _Runs, known: set[str]) -> dict[Any, list[str]]:
    """The paths that only one program has, in order, by their last name and the shapes of their arrays."""
    kinds: dict[Any, list[str]] = {}
    for (path, call, gradient), seen in run.items():
        if path not in known and not call and not gradient:
            kind = path.rpartition("/")[2], tuple(tuple(t.shape) for t in seen.types)
            kinds.setdefault(kind, []).append(path)
    return kinds
