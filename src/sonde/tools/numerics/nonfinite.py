"""`first_nonfinite` runs a program and finds the operation that made the first NaN or Inf of its results.

It walks back from a result that is not finite over the operations of the program (`sonde.why`): no sites are needed,
and masks, sentinels and what a `where` discards are never met. If there are sites or modules, they name what was found.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import traceback
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec

from sonde._array_text import short_place
from sonde.core import check_callable, inside_request, two_steps, wrapped_like
from sonde.display import InNotebook
from sonde.why import explain
from sonde.why.naming import iteration_of, site_of
from sonde.why.search import Answer, search
from sonde.why.walk import Birth

P = ParamSpec("P")

_MOST_CALLS = 4  # in a row inside packages, before some are left out
_INTERPRETED = "this line runs a program that was traced before; the line that the operation was written in is lost"
_MOST_ERROR_LINES = 5
_PACKAGES = os.sep + "site-packages" + os.sep
_KINDS = {1: "Inf", 2: "NaN"}


@dataclasses.dataclass(frozen=True, slots=True)
class Range:
    """The finite values at a site, at one call and iteration.

    Attributes:
        path: The path of the site.
        gradient: Whether these are gradients.
        call: Which of the calls under that path, from 0.
        iteration: The number of the iteration of each loop around it, outermost first.
        low: The smallest value.
        high: The largest value.
    """

    path: str
    gradient: bool
    call: int
    iteration: tuple[int, ...]
    low: float
    high: float


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class NonFinite(InNotebook):
    """The first value that is not finite.

    Attributes:
        path: The path of the first site that the value reaches; if it reaches none, of the module or scope it is made
            in; empty if there are none.
        gradient: Whether it is made in a backward pass (the value there is then finite).
        call: Which of the calls under that path, from 0.
        iteration: The number of the iteration of each loop around it, outermost first.
        source: The line of code that made it, as `file:line`.
        nans: How many elements are NaN.
        infs: How many elements are infinite.
        size: How many elements there are.
        before: The ranges of the last few named values that it was computed from, in program order; the last is its own
            finite part.
        example: Under `vmap`, the first example in which it is, by its index along each mapped axis, outermost first.
        operation: The operation that made it, such as `"div"`; `"argument"` or `"constant"` if it was there before.
        operands: What went into the operation: types, ranges, zeros.
        element: The operation with the numbers that made one element, as in `0 / 0`; empty if they are too many.
        function: The function it is made in.
        variable: The variable that its line assigns to.
        causes: The Infs that went in and were not computed, such as the -Inf of a mask, nearest first. For a constant
            that a `where` chose: the comparison that chose it.
        reached: The lines on the way from there to the result, with the operation where an Inf became a NaN.
        results: Which results, gradients and updated arguments are not finite.
        shard: Inside a `shard_map`, the position on each axis of the mesh.
        within: The loops, branches and shards around it, in words.
        chain: The calls that led there, innermost first.
        error: What the program raised, if it raised because of the value.
        doubt: What is not certain; empty if nothing is in doubt.
        discarded: Whether the value is in no result: the program computes it and does not use it.
    """

    path: str
    gradient: bool
    call: int
    iteration: tuple[int, ...]
    source: str
    nans: int
    infs: int
    size: int
    before: tuple[Range, ...]
    example: tuple[int, ...] = ()
    operation: str = ""
    operands: tuple[str, ...] = ()
    element: str = ""
    function: str = ""
    variable: str = ""
    causes: tuple[str, ...] = ()
    reached: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    shard: tuple[tuple[str, int], ...] = ()
    within: str = ""
    chain: tuple[str, ...] = ()
    error: Exception | None = None
    doubt: str = ""
    discarded: bool = False

    def __str__(self) -> str:
        kind = " and ".join(name for name, n in (("NaN", self.nans), ("Inf", self.infs)) if n) or "value"
        what = " / ".join(part for part in (self.function, self.variable) if part)
        start = ", ".join(part for part in (what, short_place(self.source)) if part)
        made = "is" if self.operation in ("argument", "constant") else "is made by"
        operands = " and ".join(self.operands)
        joined = f" of {operands}" if made == "is made by" and operands else f" {operands}"
        element = f" ({self.element})" if self.element else ""
        lines = [f"{start + ': ' if start else ''}the first {kind} {made} {self.operation}{joined}{element}"]
        if _PACKAGES in self.source and (own := next((c for c in self.chain if _PACKAGES not in c), None)):
            lines.append(f"  called by your code at {own}")
        lines.append(f"  {self.nans} NaN and {self.infs} Inf of {self.size} elements{self._where()}")
        lines += [f"  because {cause}" for cause in self.causes]
        if self.discarded:
            lines.append("  it is in no result: all of them are finite")
        if self.results:
            shown = ", ".join(self.results[:4]) + (
                f" and {len(self.results) - 4} more" if len(self.results) > 4 else ""
            )
            lines.append(f"  not finite at the end: {shown}")
        lines += [f"  then {line}" for line in self.reached]
        for r in self.before:
            place = f"{r.path}{' (gradient)' if r.gradient else ''}[{r.call}]{list(r.iteration) if r.iteration else ''}"
            values = f"{r.low:.6g}" if r.low == r.high else f"{r.low:.6g} to {r.high:.6g}"
            lines.append(f"  before it, {place}: {values}")
        lines += [f"  {line}" for line in called_at(self.chain[1:])]
        if self.doubt:
            lines.append(f"  not certain: {self.doubt}")
        if self.error is not None:
            lines.append(f"The program raised: {_error_text(self.error)}")
        return "\n".join(lines)

    def _where(self) -> str:
        parts = []
        if self.path:
            call = f", call {self.call}" if self.call else ""
            parts.append(f"{'the gradient at ' if self.gradient else ''}{self.path!r}{call}")
        if self.within:
            parts.append(self.within)
        if self.example:
            parts.append(f"example {', '.join(map(str, self.example))}")
        return f", at {', '.join(parts)}" if parts else ""

    def __repr__(self) -> str:
        return str(self)

    def __rich__(self) -> Any:
        from rich.text import Text

        first, newline, more = str(self).partition("\n")
        return Text.assemble((first, "bold" if self.discarded else "bold #ffffff on #c8102e"), newline, more)


def called_at(chain: Sequence[str]) -> list[str]:
    """The calls of a chain in words. Of many in a row inside packages, the first and the last are shown."""
    lines: list[str] = []
    for is_package, calls in itertools.groupby(chain, lambda line: _PACKAGES in line):
        shown = [f"called at {short_place(call)}" for call in calls]
        if is_package and len(shown) > _MOST_CALLS:
            names = dict.fromkeys(line.removeprefix("called at ").partition("/")[0] for line in shown[1:-1])
            shown = [shown[0], f"... {len(shown) - 2} more calls in {', '.join(names)}", shown[-1]]
        lines += shown
    return lines


def _error_text(error: Exception) -> str:
    """An exception in one line; of the tracebacks that JAX puts into a message, the line with the error itself."""
    text = "".join(traceback.format_exception_only(error)).strip().partition("\n-----")[0]  # then JAX has a remark
    lines = text.splitlines()
    if len(lines) <= _MOST_ERROR_LINES:
        return text
    own = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Warning): ", line)]
    last, name = (own or lines)[-1], type(error).__name__
    return last if name in last.partition(":")[0] else f"{name}: {last}"


@two_steps
def first_nonfinite(
    f: Callable[P, Any], *, context: int = 5, inside: object = None, discarded: bool = False
) -> Callable[P, NonFinite | None]:
    """A function that runs `f` and explains the first NaN or Inf of its results; None if all of them are finite.

    Results are what `f` returns, gradients among it, and arrays that it has put into objects among its arguments, such
    as the variables of a model. A program that raises because of a value that is not finite (a failed check of its own,
    an `assert`) is explained in the same way; any other exception is raised.

    Args:
        f: Any callable; jitted training steps are fine.
        context: How many of the named values before it to report the ranges of.
        inside: Functions, modules or packages whose values become sites, as in `sonde.capture`, to have names. The
            search itself needs none.
        discarded: If all results are finite, report the first value that was computed on the way and is not; its
            `discarded` is true. A constant, such as the -Inf of a mask, is not computed.

    Returns:
        A function with the arguments of `f`. The result of `f` is dropped, and no argument is donated.

    Raises:
        ValueError: `context` is negative.
        CaptureError: When called inside a transform, where there are no numbers yet.

    Example:
        >>> import jax, jax.numpy as jnp, sonde
        >>> @jax.jit
        ... def step(x):
        ...     x = sonde.sow(x * 1e30, "scaled")
        ...     return sonde.sow(x * x, "squared").sum()
        >>> found = sonde.first_nonfinite(step)(jnp.array([1.0, 1e-30]))
        >>> found.path, found.operation, found.element, found.infs, found.size
        ('squared', 'mul', '1e+30 * 1e+30', 1, 2)
        >>> sonde.first_nonfinite(step)(jnp.zeros(2)) is None
        True
    """
    check_callable(f, "first_nonfinite")
    if context < 0:
        raise ValueError(f"first_nonfinite: context must not be negative, got {context}")
    asked = inside_request(inside)

    def look_for(*args: P.args, **kwargs: P.kwargs) -> NonFinite | None:
        answer = search(f, args, kwargs, inside=asked, discarded=discarded)
        return None if answer is None else in_words(answer, context)

    return wrapped_like(look_for, f)


def in_words(answer: Answer, context: int) -> NonFinite:
    """What was found, in words and numbers."""
    birth = answer.birth
    scene = birth.step.scene
    made = explain.made(birth, _KINDS[birth.step.severity], answer.labels)
    site = site_of(birth)
    nans, infs, size = explain.counts(birth)
    before = [
        Range(r.path, r.gradient, 0, r.iteration, r.low, r.high)
        for r in (explain.ranges_before(birth, context) if context else [])
    ]
    return NonFinite(
        site.path,
        site.gradient,
        site.call,
        iteration_of(scene),
        made.place.source,
        nans,
        infs,
        size,
        tuple(before),
        site.example,
        made.operation,
        made.operands,
        made.element,
        made.place.function,
        made.place.variable,
        tuple(dict.fromkeys(_causes_in_words(answer))),
        explain.reached(birth, answer.turns, _KINDS, answer.labels),
        answer.results,
        explain.shard_of(scene),
        made.around,
        made.place.chain,
        answer.error,
        answer.doubt or birth.doubt or _INTERPRETED * made.place.is_interpreter,
        answer.discarded,
    )


def _causes_in_words(answer: Answer) -> list[str]:
    causes = [str(explain.made(c, _KINDS[c.step.severity], answer.labels)) for c in _all_causes(answer.birth)]
    choice = explain.choice_of(answer.birth)  # of a constant, such as the -Inf of a density outside of its support
    return [choice, *causes] if choice else causes


def _all_causes(birth: Birth) -> list[Birth]:
    """The causes of a birth, and theirs, nearest first."""
    return [cause for direct in birth.causes for cause in (direct, *_all_causes(direct))]
