"""Calls on a tape, such as jitted functions: entered with the numbers that went into them."""

from __future__ import annotations

from typing import Any

from sonde import _jax
from sonde.programs.flat import flatten
from sonde.why.reads import Index
from sonde.why.walk import ENTER, Position, Scene, Walk


def scene_of_call(scene: Scene, number: int) -> Scene | None:
    """The program inside a call, with its numbers; None if the equation is not a call."""
    equation = scene.level.equations[number]
    if equation.name not in _jax.CALLS:
        return None
    programs = _jax.sub_jaxprs(equation.params)
    if len(programs) != 1:
        return None
    known: Any = scene.entered.get(number)
    if known is None:
        level = flatten(programs[0], equation)
        known = scene.entered[number] = scene.inside(level, scene.values.many(equation.inputs), number, _leave)
    return known


def _leave(scene: Scene, slot: int, index: Index) -> Position:
    assert scene.outer is not None
    outer, number = scene.outer
    return Position(outer.at(scene.shard), outer.level.equations[number].inputs[slot], index)


def enter_call(walk: Walk, scene: Scene, number: int, output: int, index: Index) -> Position | None:
    """The way back into a call."""
    del walk
    inside = scene_of_call(scene, number)
    return None if inside is None else Position(inside, inside.level.outputs[output], index)


for _name in _jax.CALLS:
    ENTER[_name] = enter_call
