"""The calls of sites in program order, for tools that sort by it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from sonde.core import Item, merge_choices, tokens_of


class Numbered(NamedTuple):
    """A call of a site, without its arrays.

    Attributes:
        path: The path of the site.
        number: Which of the calls under that path, from 0.
        positions: Where its values are among the items: several, if branches that exclude each other share a slot.
    """

    path: str
    number: int
    positions: tuple[int, ...]


def numbered_calls(items: Sequence[Item]) -> list[Numbered]:
    """The calls whose values are among some items, in program order, numbered as in records."""
    # `merge_choices` knows which branches belong together. It needs to know only that there is a value, and reports
    # what it merged by tokens, which are positions here.
    there = np.ones((), bool)
    values = [
        dataclasses.replace(
            item,
            leaves=[],
            extras={"taken": there, "token": position},
            view=item.view.extra_on("taken", [False] * len(item.view.axes)),
        )
        for position, item in enumerate(items)
        if item.view.is_value
    ]
    found: list[Numbered] = []
    numbers: dict[str, int] = {}
    for merged in merge_choices(values):
        number = numbers[merged.path] = numbers.get(merged.path, -1) + 1
        found.append(Numbered(merged.path, number, tokens_of(merged)))
    return found


class ProgramOrder:
    """The order in which the sites of a program ran; in a loop, one iteration after the other.

    Needs a handler that distinguishes loops (`Handler.tells_loops_apart`).
    """

    def __init__(self, items: Iterable[Item]) -> None:
        self._began: dict[int, int] = {}
        for position, item in enumerate(items):
            for loop in item.loops:
                self._began.setdefault(id(loop), position)

    def key(self, position: int, loops: Iterable[object], numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
        """The sort key of the item at a position, in one iteration of each loop around it."""
        return (*((self._began[id(loop)], number) for loop, number in zip(loops, numbers)), (position, 0))
