"""Copies of modules: finds the module of the model that a module outside the model was made from.

Transforms take modules apart and build them anew from tracers, and programs do the same with `jax.tree.map`. Most
libraries store nothing in a copy about its original. Its arrays tell: followed back to where they come from
(`array_origins.py`), they are the arrays of the original. The candidates are narrowed down in this order, until one
module is left:

1. modules of the same class whose arrays those are, most of them first; of a module without arrays, those in the
   innermost call that are the same in everything,
2. those that are the same in everything but arrays,
3. the one that the innermost traced function was called with.

If several are left, nothing tells them apart, and the place is named after all of them: `left|right`. A module with
other arrays is a different module. But if none of the model's modules has been met, and it has the model's class, it is
taken for the model, which may have got new arrays.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sonde.core.modules.index import arrays_of, everything_in, rest_of
from sonde.core.modules.lineage import Source, Sources, joined

if TYPE_CHECKING:
    from sonde.core.modules.call_stack import CallStack
    from sonde.core.modules.places import Place


@dataclasses.dataclass(frozen=True)
class Copy:
    """A module that was built from the arguments of a program.

    Attributes:
        cls: Its class.
        arrays: For each of its arrays the number of the argument, if it is one, and else what it comes from.
        rest: Everything in it except arrays.
        shapes: The shapes of its arrays.
    """

    cls: type
    arrays: tuple[int | tuple[weakref.ref[Any], ...], ...]
    rest: Any
    shapes: tuple[tuple[int, ...], ...] = ()

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Copy)
            and (self.cls, self._key, self.shapes) == (other.cls, other._key, other.shapes)
            and _same(self.rest, other.rest)
        )

    def __hash__(self) -> int:
        return hash((self.cls, self._key))

    def is_own(self) -> bool:
        """Whether the program made all of its arrays: they no longer exist, and none is an argument."""
        return bool(self.arrays) and all(
            not isinstance(array, int) and all(ref() is None for ref in array) for array in self.arrays
        )

    @property
    def _key(self) -> tuple[Any, ...]:
        return tuple(x if isinstance(x, int) else tuple(map(id, x)) for x in self.arrays)


def _same(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # arrays in attributes that the library compares with the rest
        return False


def find_copy(stack: CallStack, module: Any, is_called: bool) -> tuple[tuple[Place, int] | None, list[Copy]]:
    """The place of the module that a module is a copy of, which is called or only passed on.

    Returns:
        The place and the level of the segment that it counts from, if there is such a module; and for every segment
        what it used.
    """
    sources = Sources(stack.changed)
    found = [sources.of(x) for x in arrays_of(module)]
    rest = rest_of(module)
    place = _place(stack, type(module), found, rest, sources, _shapes(module), is_called)
    copies = []
    for segment in stack.segments:
        arrays = tuple(source.numbers.get(id(segment.description), tuple(source.values)) for source in found)
        copies.append(Copy(type(module), arrays, rest, _shapes(module)))
    return place, copies


def find_again(stack: CallStack, copy: Copy, values: Sequence[Any] | None) -> tuple[Place, int] | None:
    """The place of a copy that is made from other arguments in a segment that starts now."""
    sources = Sources(stack.changed)
    found = []
    for array in copy.arrays:
        if not isinstance(array, int):
            given = [value for ref in array if (value := ref()) is not None]
        elif values is None or len(values) <= array:
            return None
        else:
            given = [values[array]]
        of = [sources.of(value) for value in given if value is not None]
        found.append(joined(of))
    return _place(stack, copy.cls, found, copy.rest, sources, copy.shapes)


@dataclasses.dataclass(slots=True)
class _Candidate:
    """A module of the class.

    Attributes:
        place: Its first place.
        level: The segment that the place counts from.
        module: The module.
        score: How many arrays fit.
        inner: How far in it is among the calls that are open.
        is_given: Whether it is in a model that the capture began with.
        root: The module whose parts were searched; the model that paths count from, if it is in that.
    """

    place: Place
    level: int
    module: Any
    score: int
    inner: int
    is_given: bool
    root: Any


def _place(
    stack: CallStack,
    cls: type,
    found: Sequence[Source],
    rest: Any,
    sources: Sources,
    shapes: Sequence[tuple[int, ...]],
    is_called: bool = True,
) -> tuple[Place, int] | None:
    left = _candidates(stack, cls, [source.ends for source in found], sources)
    best = max((c.score for c in left), default=0)
    if best:
        left = [c for c in left if c.score == best]
        if any(c.is_given for c in left):
            stack.meet_model(left[0].module)
    elif not shapes:
        left = _innermost([c for c in left if not arrays_of(c.module) and _same(rest_of(c.module), rest)])
    elif any(source.is_lost for source in found):
        left = _innermost([c for c in left if _could_be(shapes, c.module)])
    else:
        left = [c for c in left if c.is_given and not c.place.text]
        left = [c for c in left if stack.stands_in(c.module, found, sources, is_called)]
    if len(left) > 1:
        left = [c for c in left if _same(rest_of(c.module), rest)] or left
    if len(left) > 1:
        left = _called_with(stack, left) or left
    if len(left) > 1 and any(c.root is stack.root for c in left):  # the model may be part of a larger one, or of a copy
        left = [c for c in left if type(c.root) is type(stack.root)]
    if not left:
        return None
    return (left[0].place, left[0].level) if len(left) == 1 else _named_after_all(stack, left)


def _innermost(left: list[_Candidate]) -> list[_Candidate]:
    return [c for c in left if c.inner == max(c.inner for c in left)]


def _called_with(stack: CallStack, left: list[_Candidate]) -> list[_Candidate]:
    """The modules, among some, with which the innermost traced function was called that got any of them."""
    for segment in reversed(stack.segments[1:]):
        near = {id(module) for _, given in segment.given for _, module in everything_in(given)}
        if found := [c for c in left if id(c.module) in near]:
            return found
    return []


def _candidates(stack: CallStack, cls: type, ends: Sequence[set[int]], sources: Sources) -> list[_Candidate]:
    found: dict[str, _Candidate] = {}
    inner = sum(len(segment.given) + len(segment.frames) for segment in stack.segments)
    for level in reversed(range(len(stack.segments))):
        segment = stack.segments[level]
        roots = list(segment.roots())
        inner -= len(roots)
        for i, (place, root) in enumerate(roots):
            is_given = level == 0 and i < len(segment.given)
            for path, value in everything_in(root):
                if type(value) is not cls:
                    continue
                here = place.below("/".join(map(str, path)))
                known = found.get(text := stack.absolute(here, level))
                in_model = is_given and root is stack.root
                more = stack.arrays_at(path) if in_model else []
                score = max((_score(ends, arrays, sources) for arrays in (arrays_of(value), *more)), default=0)
                if known is None:
                    found[text] = _Candidate(here, level, value, score, inner + i, is_given, root)
                    continue
                if in_model:
                    known.root = root
                if score > known.score:  # another copy of the same original: a model before and after some steps
                    known.module, known.score, known.is_given = value, score, is_given
                if known.level == level:
                    known.inner = inner + i
    return list(found.values())


def _score(ends: Sequence[set[int]], arrays: Sequence[Any], sources: Sources) -> int:
    """How many of some arrays are those of a module; one more if they are in its order."""
    if not ends:
        return 0
    mine = [sources.of(x).ends for x in arrays]
    known = set[int]().union(*mine)
    score = sum(bool(end & known) for end in ends)
    in_order = len(mine) == len(ends) and all(a & b for a, b in zip(ends, mine))
    return 2 * score + in_order if score else 0


def _shapes(module: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(np.shape(x) for x in arrays_of(module))


def _could_be(shapes: Sequence[tuple[int, ...]], other: Any) -> bool:
    """Whether arrays can be those of a module: they have the same shapes, or are parts along first axes."""
    theirs = _shapes(other)
    return len(shapes) == len(theirs) and all(
        len(a) <= len(b) and b[len(b) - len(a) :] == a for a, b in zip(shapes, theirs)
    )


def _named_after_all(stack: CallStack, left: Sequence[_Candidate]) -> tuple[Place, int]:
    """A place for a module that may be any of several: `blocks/left|right`."""
    level = left[0].level
    if any(c.level != level or c.place.absolute != left[0].place.absolute for c in left):
        level, texts = 0, [stack.absolute(c.place, c.level) for c in left]
    else:
        texts = [c.place.text for c in left]
    paths = [text.split("/") for text in texts]
    n = next(i for i in range(len(paths[0]) + 1) if i == len(paths[0]) or len({tuple(p[: i + 1]) for p in paths}) > 1)
    name = "|".join(".".join(path[n:]) for path in paths)
    return left[0].place._replace(text="/".join([*paths[0][:n], name])), level
