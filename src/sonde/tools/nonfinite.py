"""`first_nonfinite` runs a program once and finds the site that made the first NaN or Inf.

It costs a few reductions per site, on the device, inside loops; no array leaves the device. First means first in
program order: forward before backward; in a loop, one iteration after the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from sonde import _jax
from sonde.core.asking import asked_for
from sonde.core.capture import check_callable, like
from sonde.core.item import expand
from sonde.core.run import run_with
from sonde.errors import CaptureError
from sonde.tools.events import Event, Range, Watching, events_of


@dataclasses.dataclass(frozen=True, slots=True)
class NonFinite:
    """The first value that is not finite.

    Attributes:
        path: The path of the site.
        gradient: Whether it is in the gradient at the site (the value there is then finite).
        call: Which of the calls under that path, from 0.
        iteration: The number of the iteration of each loop around it, outermost first.
        source: The line of the user's code.
        nans: How many elements are NaN.
        infs: How many elements are infinite.
        size: How many elements there are.
        before: The ranges of the last few values before it, in program order; the last is its own finite part.
        example: Under `vmap`, the first example in which it is, by its index along each mapped axis, outermost first.
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

    def __str__(self) -> str:
        what = "gradient" if self.gradient else "value"
        loop = f", iteration {', '.join(map(str, self.iteration))}" if self.iteration else ""
        example = f", example {', '.join(map(str, self.example))}" if self.example else ""
        lines = [
            f"first non-finite {what} at {self.path!r}, call {self.call}{loop}{example}: {self.nans} NaN and "
            f"{self.infs} Inf of {self.size} elements ({self.source})"
        ]
        for r in self.before:
            place = f"{r.path}{' (gradient)' if r.gradient else ''}[{r.call}]{list(r.iteration) if r.iteration else ''}"
            lines.append(f"  {place}: {r.low:.6g} to {r.high:.6g}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from rich.text import Text

        from sonde.core.display import in_notebook

        return in_notebook(Text(str(self)))


def first_nonfinite(f: Callable, *, context: int = 5, inside: Any = None) -> Callable[..., NonFinite | None]:
    """A function that runs `f` and reports the first NaN or Inf at a site, forward or backward; None if all is finite.

    Args:
        f: Any callable; jitted training steps are fine.
        context: How many of the sites before it to report the ranges of.
        inside: Functions, modules or packages whose values become sites, as in `sonde.capture`.

    Returns:
        A function with the arguments of `f`. The result of `f` is dropped, and no argument is donated. Only sites are
        checked: in a program without sites nothing is found.

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
        >>> found.path, found.infs, found.size
        ('squared', 1, 2)
        >>> sonde.first_nonfinite(step)(jnp.zeros(2)) is None
        True
    """
    check_callable(f, "first_nonfinite")
    if context < 0:
        raise ValueError(f"first_nonfinite: context must not be negative, got {context}")

    asked = asked_for(inside)

    def look_for(*args: Any, **kwargs: Any) -> NonFinite | None:
        _, handler = run_with(lambda depth: Watching(depth=depth), f, args, kwargs, grads=True, inside=asked)
        items = expand(handler.items)
        for item in items:
            if any(isinstance(x, _jax.Tracer) for x in item.arrays):
                raise CaptureError(
                    f"first_nonfinite must run on numbers, but {item.path!r} is being traced: call it outside jit, "
                    "vmap and grad"
                )
        return first_of(events_of(items), context)

    return like(look_for, f)


def first_of(events: Sequence[Event], context: int) -> NonFinite | None:
    """The first of these events, in program order, that is not finite, with the `context` events before it."""
    position = next((i for i, e in enumerate(events) if e.nans or e.infs), None)
    if position is None:
        return None
    bad = events[position]
    near = [e.range for e in events[max(0, position - context) : position + 1] if e.low <= e.high]
    return NonFinite(
        bad.path,
        not bad.item.view.is_value,
        bad.call,
        bad.iteration,
        bad.source,
        bad.nans,
        bad.infs,
        bad.size,
        tuple(near),
        bad.example,
    )
