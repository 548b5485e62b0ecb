"""Modules that are copies: which module of the model a module was made from that is nowhere in it.

Transforms take modules apart and build them anew from tracers, and programs do the same with `jax.tree.map`. Most
libraries keep nothing in a copy that says what it was. Its arrays do: an argument of a program stands for an array of
the program around (`_jax.TracedPrograms`), a tracer of `vmap` or of a derivative for the value it holds, a weight that
was cast, masked or scaled for the weight. Followed outward, the arrays of a copy are those of the module it was made
from. In this order, until one module is left:

1. modules of the same class whose arrays those are, most of them first,
2. if there are none, those of the same class in the innermost call that has one; before any call, the model itself,
3. those that are the same in everything but arrays,
4. the one that is in a variable of a function that runs, or is at the same place in a copy of the model there.

If several are left that have all arrays in common, or none, nothing tells them apart, and the place is named after all
of them: `left|right`. If there are several and the arrays are of none of them, the module is another one.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sonde import _jax
from sonde.core.module_index import children_of, everything_in, has_path, module_kind, path_between

if TYPE_CHECKING:
    from sonde.core.module_paths import Place, Trail

_FRAMES = 80
_STEPS = 200  # equations that are followed for one array
# What these primitives compute of an array is taken for the array itself. A weight that a program computes in another
# way, as of a product of matrices, is a new one.
# fmt: off
_CHANGES = frozenset({
    "abs", "add", "add_any", "and", "broadcast_in_dim", "clamp", "convert_element_type", "copy", "copy_p", "cos",
    "div", "dynamic_slice", "exp", "expand_dims", "gather", "integer_pow", "log", "logistic", "max", "min", "mul",
    "neg", "not", "optimization_barrier", "or", "pow", "real", "reduce_precision", "reshape", "rev", "round",
    "select_n", "sharding_constraint", "sign", "sin", "slice", "sonde_site", "sqrt", "square", "squeeze",
    "stop_gradient", "sub", "tanh", "transpose",
})
# fmt: on


@dataclasses.dataclass(frozen=True)
class Copy:
    """A module that the arguments of a program were made to.

    Attributes:
        cls: Its class.
        numbers: For each of its arrays, the number of the argument, if it is one.
        rest: What it has beside arrays.
    """

    cls: type
    numbers: tuple[int | None, ...]
    rest: Any

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Copy)
            and (self.cls, self.numbers) == (other.cls, other.numbers)
            and _same(self.rest, other.rest)
        )

    def __hash__(self) -> int:
        return hash((self.cls, self.numbers))


def _same(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # arrays in attributes that the library compares with the rest
        return False


@dataclasses.dataclass(slots=True)
class _Source:
    """Where an array comes from: the arrays outside, by identity, and the arguments of programs on the way."""

    ends: set[int]
    numbers: dict[int, int]


class _Sources:
    def __init__(self, trail: Trail) -> None:
        self._programs = _jax.TracedPrograms([stretch.frame for stretch in trail.stretches])
        self._kept: list[Any] = []  # the identity of what is gone could be that of something else

    def of(self, value: Any) -> _Source:
        found = _Source(set(), {})
        todo = [value]
        for _ in range(_STEPS):
            if not todo:
                break
            value = todo.pop()
            self._kept.append(value)
            argument = self._programs.argument(value)
            if argument is not None:
                level, number, value = argument
                if level is not None:
                    found.numbers.setdefault(level, number)
                todo.append(value)
                continue
            before = _jax.origin_of(value) if isinstance(value, _jax.Tracer) else None
            if isinstance(before, _jax.Origin):
                followed = _only_changes(before.primitive, before.params)
                inputs = [x for x in before.inputs if followed and np.ndim(x)]
                todo += inputs
                if not inputs:
                    found.ends.add(id(value))
            elif before is not None:
                todo.append(before)
            else:
                found.ends.add(id(value))
        return found


def _only_changes(primitive: Any, params: dict[str, Any]) -> bool:
    if primitive is _jax.jit_p:
        return all(_only_changes(eqn.primitive, eqn.params) for eqn in params["jaxpr"].eqns)
    return primitive.name in _CHANGES


def find_copy(trail: Trail, module: Any) -> tuple[Place, int, list[Copy]] | None:
    """Where the module stands that a module is a copy of.

    Returns:
        The place, the level of the stretch that it counts from, and for every stretch what it has asked for.
    """
    kind: Any = module_kind(module)
    sources = _Sources(trail)
    found = [sources.of(x) for x in kind.arrays(module)]
    rest = kind.rest(module)
    place = _place(trail, type(module), found, rest, sources, module)
    keys = [Copy(type(module), tuple(s.numbers.get(i) for s in found), rest) for i in range(len(trail.stretches))]
    return None if place is None else (*place, keys)


def find_again(trail: Trail, copy: Copy, values: Sequence[Any] | None) -> tuple[Place, int] | None:
    """Where a copy would stand that is made in a stretch that starts now, from other arguments."""
    sources = _Sources(trail)
    numbers = [i for i in copy.numbers if i is not None]
    if numbers and (values is None or len(values) <= max(numbers)):
        return None
    given = [values[i] for i in numbers] if values is not None else []
    return _place(trail, copy.cls, [sources.of(x) for x in given], copy.rest, sources)


@dataclasses.dataclass(slots=True)
class _Candidate:
    """A module of the class: its first place, how far in it is among the calls that are open, how many arrays fit."""

    place: Place
    level: int
    module: Any
    score: int
    inner: int


def _place(
    trail: Trail, cls: type, found: Sequence[_Source], rest: Any, sources: _Sources, module: Any = None
) -> tuple[Place, int] | None:
    has_arrays = bool(found) if module is None else bool(_arrays(module))
    left = _candidates(trail, cls, [source.ends for source in found], sources)
    best = max((c.score for c in left), default=0)
    if best:
        left = [c for c in left if c.score == best]
    else:
        if module is not None and (place := _in_copied_model(trail, module)) is not None:
            return place
        fitting = [c for c in left if module is None or _could_be(module, c.module)]
        if not fitting and not any(stretch.frames for stretch in trail.stretches):
            # The first module that is called is the model, also if it got its arrays just now.
            fitting = [c for c in left if not c.place.text]
        left = [c for c in fitting if c.inner == max(c.inner for c in fitting)]
    if len(left) > 1:
        left = [c for c in left if _same(_rest(c.module), rest)] or left
    if len(left) > 1:
        left = _in_variables(left) or left
    if not left or (len(left) > 1 and not best and has_arrays):
        return None
    return (left[0].place, left[0].level) if len(left) == 1 else _named_after_all(trail, left)


def _candidates(trail: Trail, cls: type, ends: Sequence[set[int]], sources: _Sources) -> list[_Candidate]:
    found: dict[str, _Candidate] = {}
    inner = sum(len(stretch.given) + len(stretch.frames) for stretch in trail.stretches)
    for level in reversed(range(len(trail.stretches))):
        roots = list(trail.stretches[level].roots())
        inner -= len(roots)
        for i, (place, root) in enumerate(roots):
            for path, value in everything_in(root):
                if type(value) is not cls:
                    continue
                here = place.below("/".join(map(str, path)))
                known = found.get(text := trail.absolute(here, level))
                if known is None:
                    found[text] = _Candidate(here, level, value, _score(ends, value, sources), inner + i)
                elif known.level == level:
                    known.inner = inner + i
    return list(found.values())


def _score(ends: Sequence[set[int]], module: Any, sources: _Sources) -> int:
    """How many of some arrays are those of a module; one more if they are in its order."""
    if not ends:
        return 0
    mine = [sources.of(x).ends for x in _arrays(module)]
    known = set[int]().union(*mine)
    score = sum(bool(end & known) for end in ends)
    in_order = len(mine) == len(ends) and all(a & b for a, b in zip(ends, mine))
    return 2 * score + in_order if score else 0


def _arrays(module: Any) -> Sequence[Any]:
    kind: Any = module_kind(module)
    return kind.arrays(module)


def _rest(module: Any) -> Any:
    kind: Any = module_kind(module)
    return kind.rest(module)


def _could_be(module: Any, other: Any) -> bool:
    """Whether a module can be a copy of another: its arrays have the same shapes, or are parts along first axes."""
    mine, theirs = _arrays(module), _arrays(other)
    if len(mine) != len(theirs):
        return False
    shapes = [(np.shape(a), np.shape(b)) for a, b in zip(mine, theirs)]
    return all(b[len(b) - len(a) :] == a for a, b in shapes if len(a) <= len(b)) and all(
        len(a) <= len(b) for a, b in shapes
    )


# ---------------------------------------------------------------------------------------------------------------------
# What the variables of running functions say
# ---------------------------------------------------------------------------------------------------------------------


def _variables() -> Iterator[list[Any]]:
    """The variables of the functions that run, the innermost function first."""
    frame = sys._getframe(1)
    for _ in range(_FRAMES):
        if frame is None:
            return
        if frame.f_code.co_name != "<module>" and not _jax.is_own(frame):
            yield list(frame.f_locals.values())
        frame = frame.f_back


def _in_copied_model(trail: Trail, module: Any) -> tuple[Place, int] | None:
    """The place of a module in a model that is a variable of a function that runs, and a copy of a known one."""
    given = trail.stretches[0].given
    for values in _variables():
        for value in values:
            for place, model in given:
                if type(value) is type(model) and value is not model and (path := path_between(value, module)):
                    return (place.below("/".join(map(str, path))), 0) if has_path(model, path) else None
    return None


def _in_variables(left: Sequence[_Candidate]) -> list[_Candidate]:
    """Those of some modules that are nearest in a variable of a function that runs: a transform was called with it."""
    for values in _variables():
        near = {id(module) for value in values for module in _modules_near(value)}
        if found := [c for c in left if id(c.module) in near]:
            return found
    return []


def _modules_near(value: Any) -> Iterator[Any]:
    kind = module_kind(value)
    if kind is not None:
        yield value
        if kind.is_root(value):
            return
    if kind is not None or type(value) in (tuple, list, dict):
        for _, child in children_of(value):
            yield from _modules_near(child)


def _named_after_all(trail: Trail, left: Sequence[_Candidate]) -> tuple[Place, int]:
    """A place for a module that may be any of several: `blocks/left|right`."""
    level = left[0].level
    if any(c.level != level or c.place.absolute != left[0].place.absolute for c in left):
        level, texts = 0, [trail.absolute(c.place, c.level) for c in left]
    else:
        texts = [c.place.text for c in left]
    paths = [text.split("/") for text in texts]
    n = next(i for i in range(len(paths[0]) + 1) if i == len(paths[0]) or len({tuple(p[: i + 1]) for p in paths}) > 1)
    name = "|".join(".".join(path[n:]) for path in paths)
    return dataclasses.replace(left[0].place, text="/".join([*paths[0][:n], name])), level
