"""`summarize`: statistics of every value and gradient of a program, in one pass.

The statistics of large arrays are computed on the device, inside the step and inside loops (`statistics`), and only
they are copied to the host. Small arrays are copied whole (`keeping_small`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, ParamSpec

import numpy as np

from sonde._array_text import counted, indexed
from sonde.core import (
    Pattern,
    Records,
    Rows,
    attach_records,
    check_callable,
    check_patterns,
    inside_request,
    make_records,
    run_with,
    two_steps,
    wrapped_like,
)
from sonde.display import Leaf, WholePaths, as_text, tree_html
from sonde.tools.execution.deferred_reduce import WHOLE, KeepingSmall, whole_parts
from sonde.tools.execution.record_values import Seen, each_seen, on_host
from sonde.tools.numerics.array_statistics import (
    EDGES,
    NAMES,
    Statistics,
    described,
    moments_of_parts,
    moments_of_whole,
)
from sonde.tools.reading.heatmap import Drawn, Heat

P = ParamSpec("P")

_COLUMNS = ("site", "iteration", "kind", "array", "mean", "std", "min", "max", "norm", "zeros", "dead", "bad")
_SHOWN = 3  # rows of a loop at each end


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """The statistics of a value or gradient at one call and iteration.

    Attributes:
        path: The path of the site.
        part: Which array of the pytree that was sown; `""` if it was an array.
        call: Which of the calls under that path, from 0.
        iteration: The number of the iteration of each loop around it, outermost first.
        gradient: Whether this is a gradient.
        shape: The shape of the array in one iteration, mapped axes included.
        dtype: Its dtype.
        source: The line of the user's code.
        statistics: The numbers.
    """

    path: str
    part: str
    call: int
    iteration: tuple[int, ...]
    gradient: bool
    shape: tuple[int, ...]
    dtype: str
    source: str
    statistics: Statistics

    @property
    def name(self) -> str:
        """The path, with the part, and the call and iteration where there are several."""
        return f"{self.path}{self.part and '.' + self.part}" + (f"[{self.call}]" if self.call else "")

    def _repr_html_(self) -> str:
        return Summary([self])._repr_html_()


class Summary(Rows[Row], Drawn):
    """The rows of `summarize`, in the order of the records: by path, value before gradient, then by iteration."""

    edges: np.ndarray = EDGES
    """The edges of the bins of every histogram."""

    def _heat(self) -> Heat:
        columns = ("mean", "std", "min", "max", "norm", "zeros", "dead", "nonfinite")
        numbers = [[getattr(row.statistics, c) for c in columns] for row in self]
        values = np.array([[np.nan if x is None else x for x in row] for row in numbers], float).reshape(
            -1, len(columns)
        )
        names = [f"{row.name}{list(row.iteration) or ''}{' (gradient)' * row.gradient}" for row in self]
        absent = np.array([[x is None for x in row] for row in numbers], bool).reshape(values.shape)
        title = f"{len(self)} values and gradients"
        return Heat(values, names, columns, title, absent=absent, by_column=True, alarming=("nonfinite",))

    def _repr_html_(self) -> str:
        rows = list(_shortened(self))
        numbers = [_numbers(row) if row is not None else () for row in rows]
        # Each column has a scale of its own: the numbers are of different kinds.
        columns = zip(*[n for n in numbers if n])
        most = [max((abs(x) for x in column if x is not None and np.isfinite(x)), default=0.0) for column in columns]
        leaves, with_kind = [], any(row.gradient for row in self)
        for row, values in zip(rows, numbers):
            if row is None:
                leaves.append(Leaf(leaves[-1].path, ["...", *[""] * (len(_COLUMNS) - 2)]))
                continue
            shades = [x / m if x is not None and np.isfinite(x) and m else 0.0 for x, m in zip(values, most)]
            cells = _cells(row, with_kind=with_kind)
            alarm = _alarm(row)
            leaves.append(
                Leaf(cells[0], cells[1:], alarm, bool(row.statistics.nonfinite), shades=[0.0, 0.0, 0.0, *shades])
            )
        return tree_html(counted(len({row.path for row in self}), "site"), leaves, headers=_COLUMNS[1:])

    @property
    def values(self) -> Summary:
        """The rows of values only."""
        return Summary([row for row in self if not row.gradient])

    @property
    def gradients(self) -> Summary:
        """The rows of gradients only."""
        return Summary([row for row in self if row.gradient])

    def at(self, path: str) -> Summary:
        """The rows of one path."""
        return Summary([row for row in self if row.path == path])

    @property
    def data(self) -> list[dict[str, Any]]:
        """Plain data, one flat dict per row, ready for JSON."""
        found = []
        for row in self:
            flat = {f.name: getattr(row, f.name) for f in dataclasses.fields(row) if f.name != "statistics"}
            numbers = {f.name: getattr(row.statistics, f.name) for f in dataclasses.fields(row.statistics)}
            histogram = numbers["histogram"]
            numbers["histogram"] = None if histogram is None else histogram.tolist()
            found.append({**flat, "shape": list(row.shape), "iteration": list(row.iteration), **numbers})
        return found

    def __repr__(self) -> str:
        return as_text(self) if len(self) else "0 rows: no site was met; mark values, or look into code with inside="

    def __rich__(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        table = Table(*_COLUMNS, "wrong", title=counted(len({row.path for row in self}), "site"))
        with_kind = any(row.gradient for row in self)
        for row in _shortened(self):
            alarm = "" if row is None else _alarm(row)
            style = "" if row is None or not alarm else "bold red" if row.statistics.nonfinite else "yellow"
            cells = _cells(row, with_kind=with_kind)
            table.add_row(*map(Text, (*cells, alarm)), style=style)  # not as markup: names may have brackets
        return WholePaths(table)


@two_steps
def summarize(
    f: Callable[P, Any], *patterns: Pattern, grads: bool = False, inside: object = None
) -> Callable[P, Summary]:
    """A function that runs `f` and returns statistics of the values at its sites.

    Args:
        f: Any callable; jitted training steps are fine.
        *patterns: Which sites, as in `sonde.capture`. All, if none are given.
        grads: Whether to summarize gradients too, of what is differentiated inside `f`.
        inside: Functions, modules or packages whose values become sites, as in `sonde.capture`.

    Returns:
        A function with the arguments of `f` that returns a `Summary`: a row per site, call, and iteration of a loop
        (the last iteration, for a `while_loop`). Branches that were not taken have no row. The result of `f` is
        dropped.

    Raises:
        NoSuchSiteError: When called: a pattern matches no site.
        CaptureError: When called inside a transform, where there are no numbers yet.

    Example:
        >>> import jax, jax.numpy as jnp, sonde
        >>> from sonde.tools import summarize
        >>> def f(x):
        ...     return sonde.sow(jax.nn.relu(x), "h").sum()
        >>> (row,) = summarize(f)(jnp.array([[-1.0, 3.0], [-2.0, 4.0]]))
        >>> row.path, row.statistics.mean, row.statistics.norm, row.statistics.dead
        ('h', 1.75, 5.0, 1)
    """
    check_callable(f, "summarize")
    asked = inside_request(inside)
    chosen = check_patterns(patterns, "summarize")

    def summarized(*args: P.args, **kwargs: P.kwargs) -> Summary:
        handler = KeepingSmall(chosen, large=moments_of_parts, small=whole_parts, grads=grads, donates=False)
        try:
            run_with(handler, f, args, kwargs, grads=grads, inside=asked)
        except Exception as error:
            attach_records(error, handler, moments_of_parts)
            raise
        records = make_records(handler.items, handler.met, reduce=moments_of_parts)
        return Summary(list(rows_of(records, "summarize")))

    return wrapped_like(summarized, f)


def rows_of(records: Records, verb: str, names: Collection[str] = NAMES) -> Iterator[Row]:
    """The rows of records whose values are the moments for these statistics; `verb` names the caller in messages."""
    for seen in each_seen(on_host(records, verb)):
        yield from rows_at(seen, names)


def rows_at(seen: Seen, names: Collection[str] = NAMES) -> Iterator[Row]:
    """The rows of one value or gradient with NumPy arrays: array by array, and for each by iteration."""
    for part, kind, found in seen.numbers():
        if WHOLE in found:
            found = moments_of_whole(found[WHOLE], len(seen.axes), names)
        yield from _rows(seen, part, kind, found, names)


def _rows(seen: Seen, part: str, kind: Any, found: dict[str, np.ndarray], names: Collection[str]) -> Iterator[Row]:
    for index, iteration, here in seen.steps(np.shape(found["counts"])[: seen.loops]):
        one = {name: x[index] for name, x in found.items()}
        yield Row(
            seen.path,
            part,
            seen.call,
            iteration,
            seen.gradient,
            tuple(kind.shape),
            str(kind.dtype),
            seen.site.source,
            described(one, here, names),
        )


def _shortened(rows: Sequence[Row]) -> Iterator[Row | None]:
    """The rows; for long loops the first and the last few and what is wrong between them, with None for the others."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault((row.path, row.part, row.call, row.gradient), []).append(row)
    for group in groups.values():
        if len(group) > 2 * _SHOWN + 1:
            wrong = [row for row in group[_SHOWN:-_SHOWN] if row.statistics.nonfinite]
            yield from [*group[:_SHOWN], None, *wrong[:_SHOWN], *group[-_SHOWN:]]
        else:
            yield from group


def _numbers(row: Row) -> tuple[float | None, ...]:
    s = row.statistics
    return s.mean, s.std, s.min, s.max, s.norm


def _alarm(row: Row) -> str:
    """What is wrong with a value, in a few words; empty if nothing is."""
    s = row.statistics
    said = [f"{s.nonfinite:,} not finite"] if s.nonfinite else []
    if s.zeros is not None and s.zeros == math.prod(row.shape) > 1:
        said.append("all zero")
    elif s.dead:
        said.append(f"{s.dead:,} of {row.shape[-1]:,} units dead")
    return ", ".join(said)


def _cells(row: Row | None, *, with_kind: bool) -> list[str]:
    if row is None:
        return ["", "...", *[""] * 10]
    s = row.statistics
    return [
        row.name,
        ",".join(map(str, row.iteration)),
        ("gradient" if row.gradient else "value") if with_kind else "",
        indexed(row.dtype, row.shape),
        *("-" if x is None else f"{x:.3g}" for x in _numbers(row)),
        *("-" if x is None else str(x) for x in (s.zeros, s.dead, s.nonfinite)),
    ]
