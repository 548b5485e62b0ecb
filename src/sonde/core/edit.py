"""`edit`: replaces values while a program runs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ParamSpec, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from sonde import _jax
from sonde.core.asking import asked_for
from sonde.core.capture import check_callable, like
from sonde.core.handler import Handler
from sonde.core.keeping import Programs
from sonde.core.modules.roots import ModelsOfCall, models_of_call
from sonde.core.new_values import Loop, at_positions, given_arrays, new_arrays, recorded_arrays, rows_along
from sonde.core.path import Pattern, check_pattern, glob_matches
from sonde.core.record import Record, Records
from sonde.core.rows import Row
from sonde.core.run import run_with
from sonde.core.site import Site, View, naming
from sonde.errors import EditError

P = ParamSpec("P")
R = TypeVar("R")


@dataclasses.dataclass(frozen=True, slots=True)
class Edit:
    """What to put in place of the value at a site, and when.

    Attributes:
        new: A function of the value that returns the new one, the new value itself, or a record of another run. In a
            loop, a value with the axis of the loop in front, such as that of a record, gives each iteration its part.
        calls: Which calls of the site, counted per path from 0 in program order as in `Record.values`: a number or
            several. All, if None.
        iterations: Which iterations of the innermost loop around the site, counted from 0 in the order in which they
            run: a number or several; or a function of the numbers of all loops around it, outermost first, that returns
            a boolean array. All, if None. Named loops (see `sonde.scope`) do not count, unless there are no others: the
            pattern chooses their rows.
        positions: Which indices along `axis` of the value: a number or several; negative ones count from the end. All,
            if None. Under `vmap` a value is one example.
        axis: The axis of the positions, in the arrays as they were marked; by default the last but one.

    Example:
        >>> import jax, jax.numpy as jnp, sonde
        >>> def f(x):
        ...     step = lambda c, _: (sonde.sow(c + 1, "c"), None)
        ...     return jax.lax.scan(step, x, length=4)[0]
        >>> print(sonde.edit(f, {"c": sonde.Edit(lambda c: c * 10, iterations=2)})(0))
        31
    """

    new: Any
    calls: int | Collection[int] | None = None
    iterations: int | Collection[int] | Callable[..., Any] | None = None
    positions: int | Collection[int] | None = None
    axis: int = -2

    def __post_init__(self) -> None:
        if self.positions is not None:
            positions = _several(self.positions)
            if isinstance(self.positions, str) or not all(hasattr(p, "__index__") for p in positions):
                raise TypeError(f"Edit(positions=...) takes numbers, one or several, got {self.positions!r}")
            object.__setattr__(self, "positions", tuple(map(int, positions)))
        for name in ("calls", "iterations"):
            chosen = getattr(self, name)
            if chosen is None or (name == "iterations" and callable(chosen)):
                continue
            if isinstance(chosen, str) or not all(map(_is_count, _several(chosen))):
                raise TypeError(f"Edit({name}=...) takes numbers counted from 0, one or several, got {chosen!r}")
            object.__setattr__(self, name, tuple(map(int, _several(chosen))))


def edit(f: Callable[P, R], edits: Mapping[str, Any] | Mapping[Pattern, Any], *, inside: Any = None) -> Callable[P, R]:
    """A function that runs `f` with the values at some sites replaced.

    Works in every transform and composes with `capture`, which sees the new values both inside and outside the edit.

    Args:
        f: Any callable.
        edits: For each pattern, a function of the value that returns a new one, a new value, a record, or an `Edit`
            that also says at which calls and iterations. If several match, they are applied in order. Under `vmap` a
            function sees one example. The records of a capture can be used as edits: `edit(f, records)`.
        inside: Code without sites whose values to replace, as in `capture`.

    Returns:
        A function with the arguments and results of `f`.

    Raises:
        TypeError: `f` is not callable, or `edits` is not a mapping from patterns.
        NoSuchSiteError: When called: a pattern matches no site.
        EditError: When called: a new value differs from the value at the site in structure, shape or dtype.

    Example:
        >>> import jax.numpy as jnp, sonde
        >>> def f(x):
        ...     return sonde.sow(x * 2, "h") + 1
        >>> print(sonde.edit(f, {"h": jnp.zeros_like})(jnp.ones(3)))
        [1. 1. 1.]
    """
    check_callable(f, "edit")
    if not isinstance(edits, Mapping):
        raise TypeError(
            f"edit takes a mapping from patterns to new values, got {edits!r} of type {type(edits).__name__}"
        )
    asked = asked_for(inside)
    if isinstance(edits, Records):
        given: Mapping[Any, Any] = edits.stacked
    else:
        given = edits
    chosen = {check_pattern(p): e if isinstance(e, Edit) else Edit(e) for p, e in given.items()}

    def edit_now(fn: Callable, args: Any, kwargs: Any, models: ModelsOfCall | None = None) -> Any:
        def make(depth: int) -> Editing:
            return Editing(chosen, depth=depth)

        now = asked if models is None else models.inside(args, kwargs)
        return run_with(make, fn, args, kwargs, edits=True, inside=now)[0]

    jitted = _jax.jit_options(f)
    if jitted is None:
        return like(lambda *args, **kwargs: edit_now(f, args, kwargs), f)
    fn, options = jitted

    def compiled(models: ModelsOfCall | None) -> Callable[..., Any]:
        return jax.jit(like(lambda *args, **kwargs: edit_now(fn, args, kwargs, models), fn), **options)

    if asked is None or not asked.known_models():
        return compiled(None)
    programs = Programs(f)

    def edited(*args: Any, **kwargs: Any) -> Any:
        models = models_of_call(asked, args, kwargs)
        return programs.remembered(models, lambda _: compiled(models))(*args, **kwargs)

    return like(edited, fn)


class Editing(Handler):
    """Puts new values in place of old ones."""

    def __init__(self, edits: Mapping[Pattern, Edit], *, depth: int = 1) -> None:
        super().__init__(None, tuple(edits), depth=depth)
        self.edits = edits
        self.counts_iterations = True
        self._named_at: tuple[int, ...] = ()  # which of the loops around are the named ones
        self.indices: tuple[Any, ...] = ()
        self.lengths: tuple[int | None, ...] = ()
        self._length: int | None = None  # of the loop that is entered next
        self._hit: dict[Pattern, set[int]] = {}  # which calls were replaced; shared with all children

    def child(self, base: Any = 1, steps: Sequence[Any] = (), prefix: str | None = None) -> Self:
        """The handler inside; in a loop, it knows the number of the iteration."""
        new = super().child(base, steps, prefix)
        new.indices = (*self.indices, *steps)
        new.lengths = (*self.lengths, *[self._length] * len(steps))
        return new

    def entering(self, length: int | None = None) -> Self:
        """The handler whose child is about to run; if the child takes the name of a loop, it is the next one."""
        new = super().entering(length)
        new._length = length
        if len(new.named_loops) > len(self.named_loops):
            new._named_at = (*self._named_at, len(self.indices))
        return new

    def finish(self) -> None:
        """Raises an error for a pattern, or a call number, that matched nothing."""
        super().finish()
        for pattern, wanted in self.edits.items():
            missed = set(() if wanted.calls is None else _several(wanted.calls)) - self._hit.get(pattern, set())
            if missed:
                most = max(self._hit_counts(pattern), default=0)
                raise EditError(
                    f"edit of {pattern!r}: it names call {sorted(missed)}, counted from 0, but the site runs {most} "
                    "times"
                )

    def _hit_counts(self, pattern: Pattern) -> list[int]:
        return [n for path, n in self.counts.items() if not isinstance(pattern, str) or glob_matches(pattern, path)]

    def replace(self, arrays: list[Any], site: Site, path: str, view: View) -> list[Any]:
        """The new arrays, if an edit applies to this site."""
        if not view.is_value:
            return arrays
        name, site = site.path, site.at(path)  # the whole path, for the messages
        call = self.counts.next(path)
        for pattern in self.chosen(site, path):
            wanted = self.edits[pattern]
            if wanted.calls is not None and call not in _several(wanted.calls):
                continue
            self._hit.setdefault(pattern, set()).add(call)
            if site.in_place:
                instead = "edit an array that it is made of, or that is computed from it"
                if site.depths is None:
                    instead = "use `sonde.sow` and its result there, or edit the output of a method"
                raise EditError(f"edit of {path!r} ({site.source}): {site.why_in_place}; {instead}")
            rows = self._rows(wanted, pattern, site, path)
            loops = self._loops(rows, path)
            if isinstance(wanted.new, Record):
                new = recorded_arrays(wanted.new, call, arrays, site, view, loops)
            elif callable(wanted.new):
                now = None if wanted.iterations is None else self._is_now(wanted.iterations, site, path)
                new = new_arrays(wanted.new, arrays, site, view, self.outside, name, rows=rows, now=now)
            else:
                new = given_arrays(wanted.new, arrays, site, view, loops)
            if wanted.positions is not None:
                new = at_positions(new, arrays, _several(wanted.positions), wanted.axis, site, view)
            for now in self._conditions(wanted, rows, site, path):
                new = [jnp.where(now, a, b) for a, b in zip(new, arrays)]
            arrays = new
        return arrays

    def _rows(self, wanted: Edit, pattern: Pattern, site: Site, path: str) -> list[Row]:
        """The rows of the named loops around a site that an edit applies to."""
        lengths = self.lengths_at(path)
        rows = self.rows_at(site, path, [pattern]) if lengths else []
        if isinstance(wanted.new, Record):  # it may have been recorded for some rows only
            recorded = next(call.value.view for call, _ in wanted.new.calls() if call.value.view.is_value)
            rows = [row for row in rows if recorded.has_row(row)]
        return rows

    def _loops(self, rows: Sequence[Row], path: str) -> list[Loop]:
        """The loops around a site, with the rows that an edit applies to."""
        loops = [Loop(index, length) for index, length in zip(self.indices, self.lengths)]
        for k, number in enumerate(self.loops_at(path)):
            at = self._named_at[number]
            loops[at] = Loop(self.indices[at], self.named_loops[number].length, rows_along(rows, k))
        return loops

    def _conditions(self, wanted: Edit, rows: Sequence[Row], site: Site, path: str) -> Iterator[Any]:
        """The conditions under which an edit applies in an iteration."""
        lengths = self.lengths_at(path)
        if len(rows) < math.prod(lengths) and lengths:
            chosen = np.zeros(lengths, bool)
            chosen[tuple(np.asarray(rows, int).reshape(-1, len(lengths)).T)] = True
            yield jnp.asarray(chosen)[tuple(self.indices[self._named_at[i]] for i in self.loops_at(path))]
        if wanted.iterations is not None:
            yield self._is_now(wanted.iterations, site, path)

    def _is_now(self, iterations: Any, site: Site, path: str) -> Any:
        if not self.indices:
            raise EditError(f"edit of {site.path!r} ({site.source}): it names iterations, but the site is in no loop")
        named = {self._named_at[i] for i in self.loops_at(path)}
        own = [i for i in range(len(self.indices)) if i not in named] or list(range(len(self.indices)))
        if callable(iterations):
            with naming(site, "the iterations of an edit"):
                return iterations(*(self.indices[i] for i in own))
        length = self.lengths[own[-1]]
        if length is not None and (beyond := [n for n in _several(iterations) if n >= length]):
            raise EditError(
                f"edit of {site.path!r} ({site.source}): it names iteration {beyond}, counted from 0, but the loop has "
                f"{length}"
            )
        return jnp.isin(self.indices[own[-1]], jnp.asarray(sorted(_several(iterations))))


def _is_count(number: Any) -> bool:
    return not isinstance(number, bool) and hasattr(number, "__index__") and int(number) >= 0


def _several(numbers: int | Collection[int]) -> Collection[int]:
    is_one = not isinstance(numbers, Collection) or getattr(numbers, "ndim", 1) == 0
    return (numbers,) if is_one else numbers  # pyright: ignore[reportReturnType]
