"""An answer in words and numbers: what was computed from what, where, and how it reached the result."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from sonde.why.calls import scene_of_call
from sonde.why.naming import iteration_of, path_of
from sonde.why.places import NOWHERE, Place, place_of
from sonde.why.reads import elements_read
from sonde.why.walk import Birth, Scene, Step, as_floats
from sonde.why.words import array_text, element_text

_MOST_LINES = 12  # on the way to the result


@dataclasses.dataclass(frozen=True)
class Made:
    """An operation that made a value what it is.

    Attributes:
        kind: What it made: `"NaN"`, `"Inf"`, or another word for the state that was searched for.
        operation: The name of the operation; `"constant"` or `"argument"` if the value was there from the start.
        operands: What went in, in words.
        element: The operation with the numbers that made one element, as in `0 / 0`; empty if they are too many.
        place: Where it is in the code.
        around: The loops, branches and shards around it, in words.
    """

    kind: str
    operation: str
    operands: tuple[str, ...]
    element: str
    place: Place
    around: str

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place.source else ""
        around = f" in {self.around}" if self.around else ""
        return f"{where}{self.kind} {self.sentence}{around}"

    @property
    def sentence(self) -> str:
        """The operation and its operands."""
        if self.operation in ("constant", "argument"):
            return f"from {self.operation} {', '.join(self.operands)}"
        element = f" ({self.element})" if self.element else ""
        return f"made by {self.operation} of {' and '.join(self.operands) or 'nothing'}{element}"


@dataclasses.dataclass(frozen=True)
class NamedRange:
    """The finite range of a value that has a name."""

    path: str
    gradient: bool
    iteration: tuple[int, ...]
    low: float
    high: float


def made(birth: Birth, kind: str, labels: dict[int, str]) -> Made:
    """What a birth is, in words."""
    step = birth.step
    equation = step.equation
    value = step.scene.host(step.slot)
    if equation is None:
        label = labels.get(step.slot) if step.scene.outer is None else None
        own_type = getattr(step.scene.level.types[step.slot], "dtype", value.dtype)
        # A number in the code is a double until it meets an array: it has the type of the program's value.
        text = array_text(value.astype(own_type) if value.dtype == np.float64 and own_type != value.dtype else value)
        if label is not None:
            at = f"{list(step.index)}" if step.index else ""
            return Made(kind, "argument", (f"{label.removeprefix('argument ')}{at}, {text}",), "", NOWHERE, "")
        user = next((e for s in reversed(birth.way) if (e := s.equation) is not None), None)
        place = NOWHERE if user is None else place_of(user)  # the first operation that uses it
        return Made(kind, "constant", (text,), "", place, around_text(step.scene))
    operands = [step.scene.host(slot) for slot in equation.inputs]
    output = equation.outputs.index(step.slot)
    reads = elements_read(equation, output, step.index, operands, value.shape) if operands else []
    elements: list[np.ndarray | None] = [None]
    if reads is not None and len(reads) == len(operands):
        elements = [_number(operands[r.operand][r.part]) for r in reads]
    words = tuple(map(array_text, operands))
    text = element_text(equation, elements)
    return Made(kind, equation.name, words, text, place_of(equation), around_text(step.scene))


def choice_of(birth: Birth) -> str:
    """Why a constant is there, if a `where` chose it: the comparison that it depends on; empty if none is known."""
    if birth.step.equation is not None:
        return ""
    for step in reversed(birth.way):
        equation = step.equation
        if equation is None or equation.name != "select_n":
            continue
        scene, slot = step.scene, equation.inputs[0]
        index = step.index if scene.host(slot).ndim else ()
        case = bool(scene.host(slot)[index])
        while slot not in scene.level.makers and slot < scene.level.n_inputs and scene.leave is not None:
            scene, slot, index = scene.leave(scene, slot, index)
        while (number := scene.level.makers.get(slot)) is not None:
            inside = scene_of_call(scene, number)
            if inside is None:
                break
            slot = inside.level.outputs[scene.level.equations[number].outputs.index(slot)]
            scene = inside
        if number is None:
            return ""
        test = made(Birth(Step(scene, slot, index, 0), ()), "", {})
        text = test.element or f"{test.operation} of {' and '.join(test.operands)}"
        return f"{text} is {str(case).lower()}" + (f", {test.place}" if test.place.source else "")
    return ""


def stopped_gradients(scene: Scene) -> list[str]:
    """The lines where a program stops gradients."""
    levels = [scene.level, *[inner.level for inner in scene.entered.values() if isinstance(inner, Scene)]]
    stops = [e for level in levels for e in level.equations if e.name == "stop_gradient"]
    return list(dict.fromkeys(str(place_of(e)) for e in stops))


def _number(value: Any) -> np.ndarray | None:
    value = np.asarray(value)
    return value if value.ndim == 0 else None


def around_text(scene: Scene) -> str:
    """The loops, branches and shards around, in words, outermost first."""
    words = []
    for around in scene.around:
        if around.kind == "cond":
            words.append(f"branch {around.number}")
        elif around.kind == "shard_map":
            shard = scene.shard
            words.append("shard " + ", ".join(f"{a}={p}" for a, p in zip(shard.axes, shard.position)))
        else:
            words.append(f"{around.kind} iteration {around.number}")
    return ", ".join(words)


def shard_of(scene: Scene) -> tuple[tuple[str, int], ...]:
    """The position on the mesh, by axis."""
    return () if scene.shard is None else tuple(zip(scene.shard.axes, scene.shard.position))


def reached(birth: Birth, turns: Sequence[Birth], kinds: dict[int, str], labels: dict[int, str]) -> tuple[str, ...]:
    """The lines on the way from a birth to the result, in the order of the program; repeated ones once.

    Args:
        birth: The birth.
        turns: The births on the way where the value became bad in another way.
        kinds: What the severities are called.
        labels: What arguments are called.
    """
    turning = {(turn.step.scene.level, turn.step.slot): turn for turn in turns}
    lines: dict[str, None] = {}
    own = "" if birth.step.equation is None else str(place_of(birth.step.equation))
    for step in reversed(birth.way[:-1]):
        turn = turning.get((step.scene.level, step.slot))
        if turn is not None:
            lines.setdefault(str(made(turn, kinds[turn.step.severity], labels)))
        elif step.equation is not None and (text := str(place_of(step.equation))) and text != own:
            lines.setdefault(text)
    shown = list(lines)
    if len(shown) > _MOST_LINES:
        middle = f"... {len(shown) - _MOST_LINES} more lines"
        shown = [*shown[: _MOST_LINES // 2], middle, *shown[-_MOST_LINES // 2 :]]
    return tuple(shown)


def counts(birth: Birth) -> tuple[int, int, int]:
    """How many elements of a value are NaN, how many are Inf, and how many there are.

    A constant has one element: then of the value that it was put into.
    """
    step = birth.step
    if step.equation is None and not step.index and len(birth.way) > 1:
        step = next((s for s in reversed(birth.way) if s.equation is not None and s.index), step)
    value = as_floats(step.scene.host(step.slot))
    if value.dtype.kind not in "fc":
        return 0, 0, value.size
    return int(np.isnan(value).sum()), int(np.isinf(value).sum()), value.size


def ranges_before(birth: Birth, most: int) -> list[NamedRange]:
    """The ranges of the last values with a name that a birth was computed from, in the order of the program.

    Values at sites have the names of the sites; where there are none, the variables do. The last is the finite part of
    the value itself.
    """
    found: list[tuple[Scene, int]] = []
    start = birth.step
    if start.equation is None:  # a constant: the value that it was put into
        start = next((s for s in reversed(birth.way) if s.equation is not None and len(s.equation.inputs) > 1), start)
    scene, slots = start.scene, [start.slot]
    while True:
        found += [(scene, slot) for slot in _computed_from(scene, slots)]
        if scene.outer is None or (scene.around != scene.outer[0].around):
            break
        scene, number = scene.outer  # a call: what was computed before it
        slots = list(scene.level.equations[number].inputs)
    at_sites = any(scene.level.marks.get(slot) for scene, slot in found)
    ranges: list[NamedRange] = []
    for scene, slot in found:
        named = _name(scene, slot, at_sites)
        if named is None or any((r.path, r.gradient) == named for r in ranges):
            continue
        value = as_floats(scene.host(slot))
        size = np.abs(value) if value.dtype.kind == "c" else value
        finite = size[np.isfinite(size)] if size.dtype.kind == "f" else np.zeros(0)
        if finite.size:
            path, gradient = named
            ranges.append(NamedRange(path, gradient, iteration_of(scene), float(finite.min()), float(finite.max())))
        if len(ranges) > most:
            break
    return ranges[::-1]


def _computed_from(scene: Scene, slots: Sequence[int]) -> list[int]:
    """Some values and all values of the scene that they were computed from, the latest first."""
    level = scene.level
    pending, seen, order = list(slots), set(slots), []
    while pending:
        slot = max(pending, key=lambda s: level.makers.get(s, -1))
        pending.remove(slot)
        order.append(slot)
        number = level.makers.get(slot)
        if number is not None:
            new = [s for s in level.equations[number].inputs if s not in seen]
            seen.update(new)
            pending += new
    return order


def _name(scene: Scene, slot: int, at_sites: bool) -> tuple[str, bool] | None:
    marks = scene.level.marks.get(slot)
    if at_sites:
        if not marks:
            return None
        return path_of(scene, marks[0].names, marks[0].site.path), not marks[0].view.is_value
    number = scene.level.makers.get(slot)
    if number is None:
        return None
    equation = scene.level.equations[number]
    place = place_of(equation)
    return (f"{place.function}.{place.variable}", equation.backward) if place.variable else None
