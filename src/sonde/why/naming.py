"""Names for what the walk finds: paths of sites and modules, iterations, examples. They name, and find nothing."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from sonde import _jax
from sonde.core import Site, View, exclude_each_other, path_under, row_path, sites_inside, starred
from sonde.programs.flat import Level, Mark
from sonde.why.walk import Birth, Scene, Step

_FEW = 64  # elements of a constant, for it to be compared with others


class SiteName(NamedTuple):
    """The site that a bad value reaches first.

    Attributes:
        path: Its path; that of the scope, if no site is reached.
        call: Which of the calls under that path.
        gradient: Whether it is the gradient at the site.
        example: Under `vmap`, the index along each mapped axis.
    """

    path: str
    call: int
    gradient: bool
    example: tuple[int, ...]


def site_of(birth: Birth) -> SiteName:
    """The first site on the way from a birth to the result; the scope around the birth, if there is none."""
    twins: dict[Level, list[Hashable]] = {}
    for step in reversed(birth.way):
        for mark in _marks_of(step, twins):
            mapped = sum(not axis.is_loop for axis in mark.view.axes)
            path = path_of(step.scene, mark.names, mark.site.path)
            example = step.index[:mapped] if mapped else example_of(birth)
            return SiteName(path, call_of(step, mark), not mark.view.is_value, example)
    equation = birth.step.equation
    if equation is None:
        return SiteName("", 0, False, example_of(birth))
    path = path_of(birth.step.scene, equation.names, "").rstrip("/")
    return SiteName(path, 0, equation.backward, example_of(birth))


def _marks_of(step: Step, twins: dict[Level, list[Hashable]]) -> Sequence[Mark]:
    """The sites that a value passes, or that the same value passes where the program computes it another time.

    JAX traces a function twice for its own rule of derivatives, for one. The sites are in one of the copies, and the
    program may go on with the other.

    Args:
        step: The value.
        twins: For levels that were looked at, what the slots are computed from: equal where they are the same value.
    """
    level = step.scene.level
    if step.slot in level.marks or not level.marks:
        return level.marks.get(step.slot, ())
    if level not in twins:
        twins[level] = _recipes(level)
    recipes = twins[level]
    return next((marks for slot, marks in level.marks.items() if recipes[slot] == recipes[step.slot]), ())


def _recipes(level: Level) -> list[Hashable]:
    """For each slot a number that two slots share if the same operations have computed them from the same values."""
    numbers: dict[Hashable, int] = {}
    recipes: list[Hashable] = list(range(-1, -1 - len(level.types), -1))  # inputs: each is itself
    for slot, value in level.constants.items():
        if isinstance(value, int | float | np.generic | np.ndarray) and np.size(value) < _FEW:
            recipe = "constant", str(level.types[slot]), np.asarray(value).tobytes()
            recipes[slot] = numbers.setdefault(recipe, len(numbers))
    for equation in level.equations:
        settings = tuple((k, v) for k, v in equation.params.items() if isinstance(v, int | float | str | tuple))
        operands = tuple(recipes[slot] for slot in equation.inputs)
        for which, slot in enumerate(equation.outputs):
            recipe = equation.name, which, str(level.types[slot]), repr(settings), operands
            recipes[slot] = numbers.setdefault(recipe, len(numbers))
    return recipes


def example_of(birth: Birth) -> tuple[int, ...]:
    """Under `vmap`, the example in which a value is born, by its index along each mapped axis, outermost first."""
    step = next((s for s in reversed(birth.way) if s.equation is not None), None)
    if step is None or step.equation is None:
        return ()
    equation, index, example = step.equation, list(step.index), []
    shape = list(step.scene.host(step.slot).shape)
    output = equation.outputs.index(step.slot)
    # The name of an inner vmap is around that of an outer one.
    for name in reversed([n for n in equation.names if isinstance(n, _jax.ExampleName)]):
        axis = name.position(output, tuple(shape), equation.backward)
        if axis is not None:
            example.append(index.pop(axis))
            shape.pop(axis)
    return tuple(example)


def path_of(scene: Scene, names: tuple[Any, ...], name: str) -> str:
    """The path of something in scopes, with the numbers of loops that have a name."""
    path = path_under(names, "", 1) + name
    named = [loop for loop in scene.around if loop.name is not None]
    if not named:
        return path
    with_stars, which = starred(path, [loop.name or "" for loop in named])
    return row_path(with_stars, tuple(named[i].number for i in which))


def iteration_of(scene: Scene) -> tuple[int, ...]:
    """The number of the iteration of each loop around, without loops whose number is in the path."""
    return tuple(a.number for a in scene.around if a.kind in ("scan", "while") and a.name is None)


def call_of(step: Step, mark: Mark) -> int:
    """Which of the calls under its path a site is, in the order of the program; a gradient counts as its value does."""
    before, after = _occurrences(step, mark)
    if mark.view.is_value:
        return sum(o.is_value and o.path == _path(mark.names, mark.site) for o in before)
    # A gradient belongs to the last value of its site that has none yet.
    values = [o for o in (*before, *after) if o.is_value]
    waiting: list[int] = []
    seen = 0
    for occurrence in before:
        if occurrence.site is mark.site:
            if occurrence.is_value:
                waiting.append(seen)
            elif waiting:
                waiting.pop()
        seen += occurrence.is_value
    if not waiting:  # the value was computed before the program began
        return 0
    return sum(o.path == values[waiting[-1]].path for o in values[: waiting[-1]])


class _Occurrence(NamedTuple):
    site: Site
    path: str
    is_value: bool


def _path(names: tuple[Any, ...], site: Site) -> str:
    return path_under(names, "", 1) + site.path


def _occurrences(step: Step, mark: Mark) -> tuple[list[_Occurrence], list[_Occurrence]]:
    """The sites of the whole program before and after one of them."""
    before: list[_Occurrence] = []
    after: list[_Occurrence] = []
    scene, number, own = step.scene, mark.order, True
    while True:
        in_order: list[tuple[float, _Occurrence]] = []
        for m in {(m.order, id(m.site), m.view.is_value): m for m in _all(scene.level.marks)}.values():
            is_twin = own and m.site is mark.site and m.view.is_value == mark.view.is_value and m.view.role != "site"
            if (
                _is_other_branch(m.view, mark.view)
                or m.again
                or m.view.role == "mark"
                or is_twin
                or (own and m.site is mark.site and m.order == mark.order)
            ):
                continue
            in_order.append((m.order - 0.5, _Occurrence(m.site, _path(m.names, m.site), m.view.is_value)))
        for position, equation in enumerate(scene.level.equations):
            if own or position != number:
                in_order += [
                    (position, _Occurrence(found.site, _path(found.names, found.site), found.view.is_value))
                    for jaxpr in _jax.sub_jaxprs(equation.params)
                    for found in sites_inside(jaxpr, names=equation.names)
                    if found.view.role != "mark" and not _is_other_branch(found.view, mark.view)
                ]
        in_order.sort(key=lambda entry: entry[0])
        bound = number - 0.5 if own else number
        before = [o for at, o in in_order if at < bound] + before
        after = after + [o for at, o in in_order if at >= bound]
        if scene.outer is None:
            break
        (scene, number), own = scene.outer, False
    mine = _Occurrence(mark.site, _path(mark.names, mark.site), mark.view.is_value)
    return before, [mine, *after] if mark.view.is_value else after


def _is_other_branch(view: View, other: View) -> bool:
    """Whether two sites are in branches of one choice, of which only one counts."""
    return exclude_each_other(view.gates, other.gates)


def _all(marks: dict[int, list[Mark]]) -> Iterator[Mark]:
    for some in marks.values():
        yield from some
