"""The operation at which two programs part, in words."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sonde._array_text import short_place
from sonde.port.causes import Cause, find_cause, how_far_apart
from sonde.port.difference import distance, epsilon
from sonde.port.origins import Explained
from sonde.programs.unrolled import Tape

_SMALL = 1e-3  # of the norm of the results


@dataclasses.dataclass(frozen=True, slots=True)
class Operation:
    """An operation whose inputs both programs have, and whose result only one has.

    Attributes:
        name: The primitive of JAX, such as `"add"`.
        text: The operation with the shapes of its operands, and with numbers where they are numbers.
        source: The line of the program, as `file:line`.
        scope: The named scopes around it.
        site: The path of the first site after it; `""` if there is none.
        callers: The lines of the calls that led there, innermost first: those in the same file; if that is one of an
            installed library, those in the file that calls it.
    """

    name: str
    text: str
    source: str
    scope: str
    site: str = ""
    callers: tuple[str, ...] = ()

    def __str__(self) -> str:
        called = ""
        if self.callers:
            line = self.callers[0].rpartition(":")[2]
            is_same = _file(self.callers[0]) == _file(self.source)
            called = f", called at {f'line {line}' if is_same else short_place(self.callers[0])}"
        place = f"before {self.site}" if self.site else self.scope
        place = ", ".join(filter(None, [place, short_place(self.source) if self.source else ""]))
        return f"{self.text} ({place}{called})" if place else self.text


@dataclasses.dataclass(frozen=True, slots=True)
class Parting:
    """Where two programs part.

    Attributes:
        first: The operations of the first program that the second does not have, in order; the first one is the most
            likely.
        second: Those of the second program that the first does not have.
        cause: A change of the second program with which it returns what the first does; None if none is known.
    """

    first: tuple[Operation, ...]
    second: tuple[Operation, ...]
    cause: Cause | None

    def __str__(self) -> str:
        sides = [f"{which}: {ops[0]}" for which, ops in (("first", self.first), ("second", self.second)) if ops]
        lines = ["the programs part at", *[f"  {side}" for side in sides]]
        return "\n".join([*lines, f"  {self.cause}"] if self.cause else lines)


def find_parting(
    first: Tape, second: Tape, at: Sequence[tuple[np.ndarray, np.ndarray]] = (), allowed: float = 0.0
) -> Parting | None:
    """Where two programs part on the way to what differs.

    Args:
        first: The operations of the first program.
        second: Those of the second program.
        at: Pairs of values that differ, such as those at a site; the results count in any case.
        allowed: How far apart results may be that agree, relative to their norm.

    Returns:
        Where they part; None if every operation on the way is like one of the other program.
    """
    explained = Explained((first, second))
    starts: list[list[int]] = [[], []]
    for pair in at:
        for side, array in enumerate(pair):
            starts[side] += _numbers_of(explained.tapes[side], array)[:1]
    partings = []
    tried: list[list[list[int]]] = []
    ends = [tape.results for tape in explained.tapes]
    # A small difference may be lost in the noise of what follows: then only a cause that was tried counts.
    is_small = how_far_apart(first, [second.array(i) for i in second.results]) < _SMALL
    for begin, strict in ((starts, False), (starts, True), (ends, False), (ends, True)):
        origins = explained.ranked([explained.origins(side, begin[side], strict=strict) for side in (0, 1)])
        if any(origins) and origins not in tried:
            tried.append(origins)
            partings.append(_parting(explained, origins, allowed))
            if _is_whole(partings[-1], is_small):
                return partings[-1]
    everywhere = _parting(explained, [explained.departures(side) for side in (0, 1)], allowed)
    with_cause = [parting for parting in partings if parting.cause is not None]
    return everywhere if _is_whole(everywhere, is_small) else next(iter((*with_cause, *partings)), None)


def _is_whole(parting: Parting, is_small: bool) -> bool:
    """Whether a cause explains all of the difference."""
    cause = parting.cause
    return cause is not None and not cause.is_one_of_several and not (is_small and cause.copies)


def _parting(explained: Explained, origins: list[list[int]], allowed: float) -> Parting:
    cause = find_cause(explained, origins[0], origins[1], allowed)
    if cause is not None and cause.step is not None:
        origins = [origins[0], list(dict.fromkeys([cause.step, *origins[1]]))]
    made = [tuple(_operation(explained, side, number) for number in origins[side]) for side in (0, 1)]
    return Parting(made[0], made[1], cause)


def _operation(explained: Explained, side: int, number: int) -> Operation:
    step = explained.tapes[side].steps[number]
    lines = step.lines[1:]
    if type(explained.tapes[side]) is Tape and _is_library(step.source):  # those of PyTorch are all in libraries
        # A module of a library runs in a line of the user's own.
        lines = tuple(itertools.dropwhile(_is_library, lines))
        around = lines[0] if lines else ""
    else:
        around = step.source
    callers = tuple(itertools.takewhile(lambda line: _file(line) == _file(around), lines))
    return Operation(step.name, explained.described(side, number), step.source, step.scope, step.site, callers)


def _file(line: str) -> str:
    return line.rpartition(":")[0]


def _is_library(line: str) -> bool:
    return not {"site-packages", "dist-packages"}.isdisjoint(Path(_file(line)).parts)


def _numbers_of(tape: Tape, array: np.ndarray) -> list[int]:
    """The values of a tape that are an array."""
    close = 16 * epsilon(array)
    return [
        i
        for i, value in enumerate(tape.values)
        if np.shape(value) == array.shape
        and tape.makers[i] is not None
        and distance(np.asarray(value), array).norm <= close
    ]
