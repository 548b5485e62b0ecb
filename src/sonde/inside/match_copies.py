"""Copies of modules: finds the module of the model that a module outside the model was made from.

Transforms take modules apart and build them anew from tracers, and programs do the same with `jax.tree.map`. Most
libraries store nothing in a copy about its original. Its arrays tell: followed back to where they come from
(`lineage.py`), they are the arrays of the original. The candidates are narrowed down in this order, until one module is
left:

1. modules of the same class whose arrays those are, most of them first; of a module without arrays, those in the
   innermost call that are the same in everything,
2. those that are the same in everything but arrays,
3. the one that the innermost traced function was called with.

If several are left, nothing tells them apart, and the place is named after all of them: `left|right`. A module with
other arrays is a different module. But if none of the model's modules has been met, and it has the model's class, it is
taken for the model, which may have got new arrays.
"""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from sonde import _jax
from sonde.core import CallStack, CopyKey, CopyKind, Place, at_path, everything_in, kind_of_class, path_between
from sonde.errors import ScopeError
from sonde.inside.lineage import Changed, Source, Sources, joined


@dataclasses.dataclass(frozen=True, slots=True)
class CopiesByArrays:
    """How the copies of a library's modules are recognized: by their arrays.

    Attributes:
        arrays: The arrays in a module.
        rest: Everything in a module except arrays, in a form that can be compared.
    """

    arrays: Callable[[Any], Sequence[Any]]
    rest: Callable[[Any], Any] = lambda module: None

    def finder(self, roots: Sequence[Any], trees: Sequence[Any], trace_around: _jax.Trace) -> ArrayMatcher:
        """What finds them in one capture; see `CopyKind.finder`."""
        arrays = [x for root in roots if is_found_by_arrays(root) for x in arrays_of(root)]
        return ArrayMatcher(Changed(arrays, trace_around), trees)


def _kind_of(cls: type) -> Any:
    kind = kind_of_class(cls)
    return None if kind is None else kind.copies


def is_found_by_arrays(module: Any) -> bool:
    """Whether the copies of a module are found by their arrays."""
    return _kind_of(type(module)) is not None


def arrays_of(module: Any) -> Sequence[Any]:
    """The arrays of such a module."""
    return _kind_of(type(module)).arrays(module)


def rest_of(module: Any) -> Any:
    """Everything in such a module except arrays, in a form that can be compared."""
    return _kind_of(type(module)).rest(module)


@dataclasses.dataclass(frozen=True)
class Copy(CopyKey):
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

    @property
    def kind(self) -> CopyKind:
        """How copies of the module are recognized."""
        return _kind_of(self.cls)

    def is_own(self) -> bool:
        """Whether the program made all of its arrays: they no longer exist, and none is an argument."""
        return bool(self.arrays) and all(
            not isinstance(array, int) and all(ref() is None for ref in array) for array in self.arrays
        )

    @property
    def _key(self) -> tuple[Any, ...]:
        return tuple(x if isinstance(x, int) else tuple(map(id, x)) for x in self.arrays)


def _same(rest: Any, other: Any) -> bool:
    try:
        return bool(rest == other)
    except Exception:  # arrays in attributes that the library compares with the rest
        return False


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


class ArrayMatcher:
    """Finds the originals of copies by their arrays, for one capture.

    Args:
        followed: What the program has computed from the arrays of the models, outside traced functions.
        trees: Trees that the program is called with, as the arrays of a model often are.
    """

    def __init__(self, followed: Changed, trees: Sequence[Any]) -> None:
        self.followed = followed
        self._trees = trees
        self._is_model_met = False
        # If a module with other arrays was taken for the model: where its arrays come from, and what keeps that alive.
        self._stand_in: tuple[set[int], Sources] | None = None

    def find(self, stack: CallStack, module: Any, is_called: bool) -> tuple[tuple[Place, int] | None, list[Copy]]:
        """The place of the module that a module is a copy of; see `CopyFinder.find`."""
        sources = Sources(self.followed)
        array_sources = [sources.of(x) for x in arrays_of(module)]
        other_parts = rest_of(module)
        place = self._place(stack, type(module), array_sources, other_parts, sources, _shapes(module), is_called)
        copies = []
        for segment in stack.segments:
            arrays = tuple(
                source.numbers.get(id(segment.description), tuple(source.values)) for source in array_sources
            )
            copies.append(Copy(type(module), arrays, other_parts, _shapes(module)))
        return place, copies

    def find_again(self, stack: CallStack, key: CopyKey, values: Sequence[Any] | None) -> tuple[Place, int] | None:
        """The place of a copy that is made from other arguments, in a segment that starts now."""
        if not isinstance(key, Copy):
            return None
        sources = Sources(self.followed)
        array_sources = []
        for array in key.arrays:
            if not isinstance(array, int):
                originals = [value for ref in array if (value := ref()) is not None]
            elif values is None or len(values) <= array:
                return None
            else:
                originals = [values[array]]
            array_sources.append(joined([sources.of(value) for value in originals if value is not None]))
        return self._place(stack, key.cls, array_sources, key.rest, sources, key.shapes)

    def meet(self, stack: CallStack, module: Any) -> None:
        """Notes that the program uses a module that was found by its identity."""
        if self._is_model_met and self._stand_in is None:
            return
        if any(path_between(root, module) is not None for _, root in stack.segments[0].known_modules):
            self._meet_model(stack, module)

    def may_be_model(self, stack: CallStack, module: Any) -> bool:
        """Whether a module that is no copy may turn out to be the model, when it is called."""
        return is_found_by_arrays(module) and type(module) is type(stack.root) and self._may_be_replaced(stack)

    def _meet_model(self, stack: CallStack, module: Any) -> None:
        self._is_model_met = True
        if self._stand_in is not None:
            raise ScopeError(
                f"{type(module).__name__} is a module of the model that the capture looks into, but another "
                f"{type(stack.root).__name__}, with other arrays, was called before it and was taken for the model: "
                "its sites and those of the model would have the same paths. Call the model first, or look into "
                "both: "
                "inside=[model, other]"
            )

    def _stands_in(
        self, stack: CallStack, model: Any, array_sources: Sequence[Source], sources: Sources, is_called: bool
    ) -> bool:
        """Whether to treat a module as the model although its arrays differ, for example after a training step.

        Args:
            stack: The calls of modules that are open.
            model: The model.
            array_sources: Where the arrays of the module come from.
            sources: Keeps what they come from alive, because it is known by identity.
            is_called: Whether the module is called. One that is only passed on may hold gradients.
        """
        if model is not stack.root or stack.has_frames():
            return False
        ends = set[int]().union(*[source.ends for source in array_sources])
        if is_called and self._may_be_replaced(stack):
            self._stand_in = ends, sources
        return self._stand_in is not None and bool(ends & self._stand_in[0])

    def _may_be_replaced(self, stack: CallStack) -> bool:
        """Whether another module may turn out to be the model."""
        return self._stand_in is None and not self._is_model_met and not stack.has_frames()

    def _place(
        self,
        stack: CallStack,
        cls: type,
        array_sources: Sequence[Source],
        other_parts: Any,
        sources: Sources,
        shapes: Sequence[tuple[int, ...]],
        is_called: bool = True,
    ) -> tuple[Place, int] | None:
        candidates = self._candidates(stack, cls, [source.ends for source in array_sources], sources)
        best = max((c.score for c in candidates), default=0)
        if best:
            candidates = [c for c in candidates if c.score == best]
            if any(c.is_given for c in candidates):
                self._meet_model(stack, candidates[0].module)
        elif not shapes:
            candidates = _innermost(
                [c for c in candidates if not arrays_of(c.module) and _same(rest_of(c.module), other_parts)]
            )
        elif any(source.is_lost for source in array_sources):
            candidates = _innermost([c for c in candidates if _could_be(shapes, c.module)])
        else:
            candidates = [c for c in candidates if c.is_given and not c.place.text]
            candidates = [c for c in candidates if self._stands_in(stack, c.module, array_sources, sources, is_called)]
        if len(candidates) > 1:
            candidates = [c for c in candidates if _same(rest_of(c.module), other_parts)] or candidates
        if len(candidates) > 1:
            candidates = _called_with(stack, candidates) or candidates
        # The model may be part of a larger one, or of a copy.
        if len(candidates) > 1 and any(c.root is stack.root for c in candidates):
            candidates = [c for c in candidates if type(c.root) is type(stack.root)]
        if not candidates:
            return None
        return (
            (candidates[0].place, candidates[0].level) if len(candidates) == 1 else _named_after_all(stack, candidates)
        )

    def _candidates(self, stack: CallStack, cls: type, ends: Sequence[set[int]], sources: Sources) -> list[_Candidate]:
        by_path: dict[str, _Candidate] = {}
        inner = sum(len(segment.known_modules) + len(segment.frames) for segment in stack.segments)
        for level in reversed(range(len(stack.segments))):
            segment = stack.segments[level]
            roots = list(segment.roots())
            inner -= len(roots)
            for i, (place, root) in enumerate(roots):
                is_given = level == 0 and i < len(segment.known_modules)
                for path, value in everything_in(root):
                    if type(value) is not cls:
                        continue
                    place_here = place.below("/".join(map(str, path)))
                    at_same_path = by_path.get(text := stack.absolute(place_here, level))
                    in_model = is_given and root is stack.root
                    more = self._arrays_in_trees(path) if in_model else []
                    score = max((_score(ends, arrays, sources) for arrays in (arrays_of(value), *more)), default=0)
                    if at_same_path is None:
                        by_path[text] = _Candidate(place_here, level, value, score, inner + i, is_given, root)
                        continue
                    if in_model:
                        at_same_path.root = root
                    if (
                        score > at_same_path.score
                    ):  # another copy of the same original: a model before and after some steps
                        at_same_path.module, at_same_path.score, at_same_path.is_given = value, score, is_given
                    if at_same_path.level == level:
                        at_same_path.inner = inner + i
        return list(by_path.values())

    def _arrays_in_trees(self, path: Sequence[Any]) -> list[list[Any]]:
        """The arrays of a submodule in the trees that the program is called with."""
        arrays = []
        for tree in self._trees:
            with contextlib.suppress(KeyError, IndexError, TypeError):
                arrays.append(jax.tree.leaves(at_path(tree, tuple(path))))
        return arrays


def _innermost(candidates: list[_Candidate]) -> list[_Candidate]:
    return [c for c in candidates if c.inner == max(c.inner for c in candidates)]


def _called_with(stack: CallStack, candidates_of_class: list[_Candidate]) -> list[_Candidate]:
    """The modules, among some, with which the innermost traced function was called that got any of them."""
    for segment in reversed(stack.segments[1:]):
        near = {id(module) for _, argument in segment.known_modules for _, module in everything_in(argument)}
        if candidates := [c for c in candidates_of_class if id(c.module) in near]:
            return candidates
    return []


def _score(ends: Sequence[set[int]], arrays: Sequence[Any], sources: Sources) -> int:
    """How many of some arrays are those of a module; one more if they are in its order."""
    if not ends:
        return 0
    own_ends = [sources.of(x).ends for x in arrays]
    all_ends = set[int]().union(*own_ends)
    score = sum(bool(end & all_ends) for end in ends)
    in_order = len(own_ends) == len(ends) and all(a & b for a, b in zip(ends, own_ends))
    return 2 * score + in_order if score else 0


def _shapes(module: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(np.shape(x) for x in arrays_of(module))


def _could_be(shapes: Sequence[tuple[int, ...]], other: Any) -> bool:
    """Whether arrays can be those of a module: they have the same shapes, or are parts along first axes."""
    theirs = _shapes(other)
    return len(shapes) == len(theirs) and all(
        len(a) <= len(b) and b[len(b) - len(a) :] == a for a, b in zip(shapes, theirs)
    )


def _named_after_all(stack: CallStack, candidates: Sequence[_Candidate]) -> tuple[Place, int]:
    """A place for a module that may be any of several: `blocks/left|right`."""
    level = candidates[0].level
    if any(c.level != level or c.place.absolute != candidates[0].place.absolute for c in candidates):
        level, texts = 0, [stack.absolute(c.place, c.level) for c in candidates]
    else:
        texts = [c.place.text for c in candidates]
    paths = [text.split("/") for text in texts]
    n = next(i for i in range(len(paths[0]) + 1) if i == len(paths[0]) or len({tuple(p[: i + 1]) for p in paths}) > 1)
    name = "|".join(".".join(path[n:]) for path in paths)
    return candidates[0].place._replace(text="/".join([*paths[0][:n], name])), level
