"""One side of a comparison: a program is run once, and every array it marked or returned becomes a `Point`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

from sonde.core import InsideRequest, Pattern, Recording, Records, arrays_in, expand, make_records, run_with
from sonde.programs.traced import Program, is_number
from sonde.tools.execution.program_order import ProgramOrder, numbered_calls
from sonde.tools.execution.record_values import Seen, each_seen, on_host

RESULT = "the result"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Point:
    """An array that a program computed, in one call of a site and one iteration of each loop around it.

    Attributes:
        path: The path of the site; `RESULT`, or a name in the arguments, for what the function returned.
        part: Which array of the pytree that was sown; `""` if it was an array.
        call: Which of the calls under that path, from 0.
        iteration: The number of the iteration of each loop around it, outermost first.
        gradient: Whether it is a gradient.
        array: The numbers.
        source: The line of the site.
        order: Sorts the points of a program as it ran.
        taken: Whether the branch with the site was taken.
        times: How many times the `while_loop` around the site ran; None where there is none.
        row: Which row of the program's array it is; None if it is all of it.
    """

    path: str
    part: str
    call: int
    iteration: tuple[int, ...]
    gradient: bool
    array: np.ndarray
    source: str
    order: Any = ()
    taken: bool = True
    times: int | None = None
    row: int | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """What identifies its array in its program."""
        iteration = self.iteration if self.row is None else self.iteration[:-1]
        return self.path, self.part, self.gradient, self.call, iteration


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """What a program computed.

    Attributes:
        points: The values at its sites, as it ran: forward before backward.
        results: What it returned; None if that is not known, or is among the points.
        texts: Strings that it returned, by place: they are no numbers.
    """

    points: tuple[Point, ...]
    results: tuple[Point, ...] | None
    texts: Mapping[str, str] = dataclasses.field(default_factory=dict)


def run_side(
    f: Callable,
    patterns: Sequence[Pattern],
    grads: bool,
    inside: InsideRequest | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Run:
    """Runs a program with a capture around it."""
    handler = Recording(tuple(patterns), grads=grads, donates=False)
    handler.tells_loops_apart = True
    result = run_with(handler, f, args, dict(kwargs), grads=grads, inside=inside)
    items = expand(handler.items)
    records = make_records(items, handler.met)
    order = _program_order(items)
    seen = list(each_seen(records))
    arrays = on_host([([_as_numbers(x) for x in arrays_in(s.value)], s.taken, s.count) for s in seen], "compare")
    points = [p for s, (values, taken, count) in zip(seen, arrays) for p in _points(s, values, taken, count, order)]
    points.sort(key=lambda point: point.order)
    leaves = jax.tree_util.tree_flatten_with_path(result)[0]
    texts = {jax.tree_util.keystr(keys): leaf for keys, leaf in leaves if isinstance(leaf, str)}
    return Run(tuple(points), results_of(result), texts)


def traced_with_sites(make: Callable[[], Program], inside: InsideRequest | None) -> Program:
    """A program that is traced in a capture, so that it has its sites; only to be taken apart."""
    programs: list[Program] = []
    run_side(lambda: programs.append(make()), (), False, inside, (), {})
    return programs[0]


def points_of(records: Records) -> tuple[Point, ...]:
    """The points of records, in their order."""
    seen = list(each_seen(records))
    arrays = on_host([([_as_numbers(x) for x in arrays_in(s.value)], s.taken, s.count) for s in seen], "compare")
    points = []
    for position, (s, (values, taken, count)) in enumerate(zip(seen, arrays)):
        # Gradients come after all values, and backwards.
        order = (1, [(-position, 0)]) if s.gradient else (0, [(position, 0)])
        points += _points(
            s, values, taken, count, lambda _, index, order=order: (order[0], [*order[1], *((i, 0) for i in index)])
        )
    return tuple(sorted(points, key=lambda p: p.order))


def results_of(result: Any, path: str = RESULT, *, gradient: bool = False) -> tuple[Point, ...]:
    """The arrays of a result. Python numbers count; text and other objects do not."""
    leaves = jax.tree_util.tree_flatten_with_path(result)[0]
    leaves = [(keys, x) for keys, x in leaves if is_number(x) or isinstance(x, bool | int | float | complex)]
    arrays = on_host([_as_numbers(x) for _, x in leaves], "compare")
    return tuple(
        Point(path, jax.tree_util.keystr(keys), 0, (), gradient, np.asarray(x), "")
        for (keys, _), x in zip(leaves, arrays)
    )


def _as_numbers(x: ArrayLike) -> Any:
    is_key = jax.dtypes.issubdtype(getattr(x, "dtype", None) or np.float32, jax.dtypes.prng_key)
    return jax.random.key_data(x) if is_key else x


def _points(seen: Seen, arrays: Sequence[Any], taken: Any, count: Any, order: Callable) -> list[Point]:
    points = []
    for part, array in zip(seen.parts, map(np.asarray, arrays)):
        for index in np.ndindex(array.shape[: seen.loops]):
            was_taken = taken is None or bool(np.any(np.asarray(taken)[index[: np.ndim(taken)]]))
            times = None if count is None else int(np.max(np.asarray(count)[index[: np.ndim(count)]]))
            iteration = index if times is None else (*index, times - 1)
            key = order(seen, index)
            name = seen.path, part, seen.call, iteration, seen.gradient
            points.append(Point(*name, array[index], seen.site.source, key, was_taken, times))
    return points


def _program_order(items: Sequence[Any]) -> Callable[[Seen, tuple[int, ...]], Any]:
    """A sort key for a value in one iteration: forward in program order, then backward in the opposite order."""
    program = ProgramOrder(items)
    calls = {(call.path, call.number): call.positions[0] for call in numbered_calls(items)}

    def order(seen: Seen, iteration: tuple[int, ...]) -> Any:
        path, call, numbers = seen.path, seen.call, ()
        if seen.row is not None:
            path, call, numbers = seen.row.path, seen.row.call, seen.row.numbers
        position = calls.get((path, call), -1)
        axes = [axis for axis in items[position].view.axes if axis.is_loop] if position >= 0 else []
        rows, others = iter(numbers), iter(iteration)
        key = program.key(
            position, [axis.loop for axis in axes], [next(others if a.rows is None else rows, 0) for a in axes]
        )
        return (1, [(-a, -b) for a, b in key]) if seen.gradient else (0, list(key))

    return order
