"""Pairs the points of two programs, whatever they are called.

In this order, each step for what the steps before left over: pairs that were given; the same path; the same path
without numbers, and then the same last name, if both programs have as many, of the same sizes (rows of a loop against
elements of a list); values that are the same up to transposing and reshaping; and the order in the programs, between
pairs that are known, if as many of the same sizes are left on both sides.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Literal, TypeVar

from sonde.port.layouts import are_arranged
from sonde.port.prints import Prints, print_of
from sonde.tools.comparison.runs import Point

K = TypeVar("K", bound=Hashable)
By = Literal["given", "path", "name", "value", "order"]


@dataclasses.dataclass(frozen=True, slots=True)
class Match:
    """Two values that correspond.

    Attributes:
        first: What it is called in the first program; with a number in brackets, if a path has several values.
        second: The same in the second program.
        by: Why they were matched: `"given"`, `"path"`, `"name"` (a part of the path), `"value"` or `"order"`.
    """

    first: str
    second: str
    by: By


class Points:
    """The points of one program, and their labels."""

    def __init__(self, points: Iterable[Point]) -> None:
        self.all = list(points)
        self.by_path = _groups(self.all, lambda p: (p.path, p.gradient))
        self.labels: dict[int, str] = {}
        for (path, gradient), group in self.by_path.items():
            several = len({(p.call, p.iteration) for p in group}) > 1
            numbers = _numbers((p.call, p.iteration) for p in group)
            for p, number in zip(group, numbers):
                part = p.part and "." + p.part
                self.labels[id(p)] = path + (f"[{number}]" if several else "") + part + " (gradient)" * gradient

    def label(self, point: Point) -> str:
        """What a point is called in a `Match`."""
        return self.labels[id(point)]


@dataclasses.dataclass(slots=True)
class Pair:
    """Two points that correspond."""

    first: Point
    second: Point
    by: By


def match(first: Points, second: Points, given: Mapping[str, str]) -> list[Pair]:
    """The points of two programs that correspond, in the order of the first program.

    Args:
        first: The points of the first program.
        second: The points of the second.
        given: Pairs that are known: labels or paths of the first program, and the ones in the second. `{i}` stands for
            the same number on both sides; what follows a path is kept.

    Raises:
        ValueError: A path that was given does not occur.
    """
    pairs = _given(first, second, given)
    for by, key in _KEYS:
        left, right = _left(first, second, pairs, by)
        ours, theirs = _groups(left, key), _groups(right, key)
        for name, group in ours.items():
            pairs += _pair_group(group, theirs.get(name, []), by)
    pairs += _by_value(*_left(first, second, pairs, "value"))
    pairs += _by_order(first, second, pairs)
    position = {id(p): i for i, p in enumerate(first.all)}
    return sorted(pairs, key=lambda pair: position[id(pair.first)])


def _left(first: Points, second: Points, pairs: Sequence[Pair], by: By) -> tuple[list[Point], list[Point]]:
    """What is not paired yet. A path that both programs have is matched as such, or not at all."""
    used = {id(p) for pair in pairs for p in (pair.first, pair.second)}
    left, right = ([p for p in side.all if id(p) not in used] for side in (first, second))
    if by == "path":
        return left, right
    shared = first.by_path.keys() & second.by_path.keys()
    left, right = ([p for p in side if (p.path, p.gradient) not in shared] for side in (left, right))
    return left, right


def match_results(ours: Sequence[Point], theirs: Sequence[Point]) -> list[Pair] | None:
    """The results of two programs that correspond; None if they do not.

    Results with the same keys correspond, also those of dicts in another order; a key that only one program has has no
    counterpart. Without keys, such as in tuples, results correspond by place if there are as many. Where one program
    has a list, the other may have all its elements in one array.
    """
    names = [[_keys(p.part) for p in side] for side in (ours, theirs)]
    if any(len(set(own)) < len(own) for own in names):  # keys that differ in what is no letter, such as "a/b" and "a.b"
        names = [[(p.part,) for p in side] for side in (ours, theirs)]
    common = set(names[0]) & set(names[1])
    by_place = len(ours) == len(theirs)
    if by_place and len(common) == len(ours):
        return _with_same_keys(ours, theirs, names)
    named = [[bool(_words(p.part)) for p in side] for side in (ours, theirs)]
    have_keys = any(named[0]) and any(named[1]) and (bool(common) or all((*named[0], *named[1])))
    if by_place and not have_keys:
        return [Pair(a, b, "path") for a, b in zip(ours, theirs)]
    groups, others = (_groups(side, lambda p: _words(p.part)) for side in (ours, theirs))
    if groups.keys() != others.keys():
        return _with_same_keys(ours, theirs, names) if have_keys else None
    pairs: list[Pair] = []
    for name, group in groups.items():
        other = others[name]
        if len(group) != len(other) and 1 in (len(group), len(other)):
            group, other = (
                rows_of(side[0]) if len(side) == 1 and side[0].array.ndim else side for side in (group, other)
            )
        if len(group) != len(other):
            return _with_same_keys(ours, theirs, names) if have_keys else None
        pairs += [Pair(a, b, "name") for a, b in zip(group, other)]
    return pairs


def _with_same_keys(
    ours: Sequence[Point], theirs: Sequence[Point], names: Sequence[Sequence[tuple[str, ...]]]
) -> list[Pair]:
    by_name = dict(zip(names[1], theirs))
    return [Pair(p, by_name[name], "path") for p, name in zip(ours, names[0]) if name in by_name]


def _keys(part: str) -> tuple[str, ...]:
    """The keys that lead to a result: an attribute of a dataclass is as good as a key of a dict."""
    return tuple(re.findall(r"\w+", part))


def rows_of(point: Point) -> list[Point]:
    """A value that has one row for each iteration of a loop, taken apart."""
    return [
        dataclasses.replace(point, array=row, iteration=(*point.iteration, i), row=i)
        for i, row in enumerate(point.array)
    ]


# ---------------------------------------------------------------------------------------------------------------------
# Keys, from strict to loose
# ---------------------------------------------------------------------------------------------------------------------


def _path(p: Point) -> Hashable:
    return p.path, p.part, p.gradient


def _words(path: str) -> tuple[str, ...]:
    """The parts of a path that are not numbers."""
    return tuple(word for word in re.findall(r"\w+", path) if not word.isdigit())


def _path_without_numbers(p: Point) -> Hashable:
    return _words(p.path), p.part, p.gradient


def _path_without_digits(p: Point) -> Hashable:
    return (
        tuple(word for word in (re.sub(r"\d+", "", word).strip("_") for word in _words(p.path)) if word),
        p.part,
        p.gradient,
    )


def _last_name(p: Point) -> Hashable:
    names = [re.sub(r"[\d_.]+$", "", name) for name in re.split(r"[/.]", p.path)]
    names = [name for name in names if name] or [""]
    return names[-1], p.part, p.gradient, _shape(p)


def _shape(p: Point) -> tuple[int, ...]:
    """The lengths of the axes, in whatever order."""
    return tuple(sorted(n for n in p.array.shape if n != 1))


_KEYS: tuple[tuple[By, Callable[[Point], Hashable]], ...] = (
    ("path", _path),
    ("name", _path_without_numbers),
    ("name", _path_without_digits),
    ("name", _last_name),
)


def _pair_group(ours: Sequence[Point], theirs: Sequence[Point], by: By) -> list[Pair]:
    if not ours or not theirs:
        return []
    keys = [[(p.call, p.iteration) for p in side] for side in (ours, theirs)]
    if keys[0] == keys[1] or (len(ours) == len(theirs) and (by == "path" or _same_sizes(ours, theirs))):
        return [Pair(a, b, by) for a, b in zip(ours, theirs)]
    if by != "path":
        return []
    known = dict(zip(keys[1], theirs))
    return [Pair(a, known[key], by) for a, key in zip(ours, keys[0]) if key in known]


def _same_sizes(ours: Sequence[Point], theirs: Sequence[Point]) -> bool:
    return all(a.array.size == b.array.size for a, b in zip(ours, theirs))


# ---------------------------------------------------------------------------------------------------------------------
# By value and by order
# ---------------------------------------------------------------------------------------------------------------------


def _by_value(left: Sequence[Point], right: Sequence[Point]) -> list[Pair]:
    if not left or not right:
        return []
    prints = Prints()
    for p in right:
        prints.add(print_of(p.array), p)
    pairs, taken = [], set()
    for p in left:
        # Of several equal values, the first that is left: both programs are in order.
        candidates = (q for q in prints.equal_to(print_of(p.array)) if id(q) not in taken and q.gradient == p.gradient)
        match = next((q for q in candidates if are_arranged(q.array, p.array)), None)
        if match is not None:
            taken.add(id(match))
            pairs.append(Pair(p, match, "value"))
    return pairs


def _by_order(first: Points, second: Points, known: Sequence[Pair]) -> list[Pair]:
    """Pairs what is left between two known pairs that are neighbors in both programs."""
    ours = {id(p): i for i, p in enumerate(first.all)}
    theirs = {id(p): i for i, p in enumerate(second.all)}
    anchors = _increasing(sorted((ours[id(k.first)], theirs[id(k.second)]) for k in known if id(k.second) in theirs))
    left, right = _left(first, second, known, "order")
    # What has the numbers of any value of the other program is no counterpart of one that has not.
    left_over = {id(p) for p in (*_without_like(left, second.all), *_without_like(right, first.all))}
    pairs = []
    edges = [(-1, -1), *anchors, (len(first.all), len(second.all))]
    for (a, b), (c, d) in itertools.pairwise(edges):
        left = [p for p in first.all[a + 1 : c] if id(p) in left_over]
        right = [p for p in second.all[b + 1 : d] if id(p) in left_over]
        same = len(left) == len(right) and all(
            _shape(p) == _shape(q) and p.gradient == q.gradient for p, q in zip(left, right)
        )
        if same:
            pairs += [Pair(p, q, "order") for p, q in zip(left, right)]
    return pairs


def _without_like(points: Sequence[Point], others: Sequence[Point]) -> list[Point]:
    prints = Prints()
    for p in others if points else ():
        prints.add(print_of(p.array), p)
    return [p for p in points if not any(are_arranged(q.array, p.array) for q in prints.equal_to(print_of(p.array)))]


def _increasing(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest part of some pairs, sorted by their first number, whose second numbers increase."""
    ends: list[int] = []
    best: list[tuple[int, int | None]] = []  # for each length, the pair that ends it; and before it, by position
    where: list[int] = []
    for position, (_, second) in enumerate(pairs):
        at = bisect.bisect_left(ends, second)
        before = where[at - 1] if at else None
        best.append((position, before))
        if at == len(ends):
            ends.append(second)
            where.append(position)
        else:
            ends[at], where[at] = second, position
    chain: list[tuple[int, int]] = []
    at = where[-1] if where else None
    while at is not None:
        chain.append(pairs[at])
        at = best[at][1]
    return chain[::-1]


# ---------------------------------------------------------------------------------------------------------------------
# Pairs that were given
# ---------------------------------------------------------------------------------------------------------------------


def _given(first: Points, second: Points, given: Mapping[str, str]) -> list[Pair]:
    if not given:
        return []
    ours, theirs = _by_label(first), _by_label(second)
    pairs, used = [], set()
    for pattern, target in given.items():
        matched = False
        for label, points in ours.items():
            other = _translated(pattern, target, label)
            if other is None:
                continue
            matched = True
            if other not in theirs:
                raise ValueError(
                    f"compare(match_paths=...): the second program has no site {other!r}, which {pattern!r}: "
                    f"{target!r} matches with {label!r}; it has {_some(theirs)}"
                )
            for p, q in zip(points, theirs[other]):
                if id(p) not in used and id(q) not in used:
                    used |= {id(p), id(q)}
                    pairs.append(Pair(p, q, "given"))
        if not matched:
            raise ValueError(
                f"compare(match_paths=...): the first program has no site {pattern!r}; it has {_some(ours)}"
            )
    return pairs


def _translated(pattern: str, target: str, label: str) -> str | None:
    """What a label is in the other program, if a given pattern is about it."""
    parts = re.split(r"(\{\w+\})", pattern)
    regex = "".join(
        (f"(?P={part[1:-1]})" if part in parts[:i] else rf"(?P<{part[1:-1]}>\d+)") if i % 2 else re.escape(part)
        for i, part in enumerate(parts)
    )
    found = re.match(regex + r"(?=$|[/.\[ ])", label)
    if found is None:
        return None
    numbers = found.groupdict()
    return re.sub(r"\{(\w+)\}", lambda m: numbers.get(m[1], m[0]), target) + label[found.end() :]


def _by_label(points: Points) -> dict[str, list[Point]]:
    """The points by label, and by path alone, first calls first."""
    found: dict[str, list[Point]] = {}
    for p in points.all:
        found.setdefault(points.label(p), []).append(p)
    for (path, gradient), group in points.by_path.items():
        found.setdefault(path + " (gradient)" * gradient, group)
    return found


def _some(labels: Mapping[str, object]) -> str:
    names = list(labels)
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "") if names else "none"


def _groups(points: Iterable[Point], key: Callable[[Point], K]) -> dict[K, list[Point]]:
    groups: dict[K, list[Point]] = {}
    for p in points:
        groups.setdefault(key(p), []).append(p)
    return groups


def _numbers(keys: Iterable[Hashable]) -> list[int]:
    order: dict[Hashable, int] = {}
    return [order.setdefault(key, len(order)) for key in keys]
