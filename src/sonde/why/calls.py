"""Calls on a tape, such as jitted functions: entered with the numbers that went into them."""

from __future__ import annotations

from typing import Any

from sonde.programs.flat import flatten, program_inside
from sonde.why.reads import Index
from sonde.why.walk import ANY, ENTER, Position, Scene, Walk


def scene_of_call(scene: Scene, number: int) -> Scene | None:
    """The program inside a call, with its numbers; None if the equation is not a call."""
    known: Any = scene.entered.get(("call", number), ())
    if known == ():
        known = scene.entered["call", number] = _scene_inside(scene, number)
    return known


def _scene_inside(scene: Scene, number: int) -> Scene | None:
    equation = scene.level.equations[number]
    types = [scene.level.types[slot] for slot in equation.inputs]
    inside = program_inside(equation.primitive, equation.params, equation.inputs, types)
    if inside is None:
        return None
    program, operands = inside

    def leave(inner: Scene, slot: int, index: Index) -> Position:
        return Position(scene.at(inner.shard), operands[slot], index)

    return scene.inside(flatten(program, equation), scene.values.many(operands), number, leave)


def enter_call(walk: Walk, scene: Scene, number: int, output: int, index: Index) -> Position | None:
    """The way back into a call."""
    del walk
    inside = scene_of_call(scene, number)
    return None if inside is None else Position(inside, inside.level.outputs[output], index)


ENTER[ANY] = enter_call
