"""`trace_back` finds the operation that gave a result a property: too large, zero, out of a range.

It is the walk of `first_nonfinite` with another question: from an element of a result for which the predicate is true,
back to the operation none of whose operands it was true for.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from typing import Any, ParamSpec

import jax
import numpy as np

from sonde import _jax
from sonde._array_text import short_place
from sonde.core import check_callable, inside_request, two_steps, wrapped_like
from sonde.display import InNotebook
from sonde.tools.numerics.nonfinite import called_at
from sonde.why import explain
from sonde.why.naming import iteration_of, site_of
from sonde.why.search import search
from sonde.why.walk import Birth, Step

P = ParamSpec("P")

Predicate = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class TracedBack(InNotebook):
    """The operation that gave a result its property.

    Attributes:
        operation: The operation, such as `"mul"`; `"constant"` or `"argument"` if the value was there before.
        operands: What went into the operation: types, ranges, zeros.
        element: The operation with the numbers that made one element, as in `200 * 300`; empty if they are too many.
        function: The function it is in.
        variable: The variable that its line assigns to.
        source: Its line, as `file:line`.
        path: The path of the first site that the value reaches, or of the module or scope it is made in.
        gradient: Whether it is part of a backward pass.
        iteration: The number of the iteration of each loop around it, outermost first.
        example: Under `vmap`, the example, by its index along each mapped axis.
        within: The loops, branches and shards around it, in words.
        choice: For a constant that a `where` chose, as the zeros in the gradient of `relu` are: the comparison that
            chose it. For a gradient that is zero because nothing leads back to the argument: that, and where it stops.
        results: The results that have the property.
        reached: The lines on the way from there to the result.
        chain: The calls that led there, innermost first.
        doubt: What is not certain; empty if nothing is in doubt.
    """

    operation: str
    operands: tuple[str, ...]
    element: str
    function: str
    variable: str
    source: str
    path: str
    gradient: bool
    iteration: tuple[int, ...]
    example: tuple[int, ...]
    within: str
    choice: str
    results: tuple[str, ...]
    reached: tuple[str, ...]
    chain: tuple[str, ...]
    doubt: str

    def __str__(self) -> str:
        what = " / ".join(part for part in (self.function, self.variable) if part)
        start = ", ".join(part for part in (what, short_place(self.source)) if part)
        element = f" ({self.element})" if self.element else ""
        within = f" in {self.within}" if self.within else ""
        operands = " and ".join(self.operands)
        lines = [f"{start + ': ' if start else ''}it begins with {self.operation} of {operands}{element}{within}"]
        if self.choice:
            lines.append(f"  because {self.choice}")
        if self.path:
            lines.append(f"  at {'the gradient at ' if self.gradient else ''}{self.path!r}")
        lines.append(f"  seen at the end: {', '.join(self.results)}")
        lines += [f"  then {line}" for line in self.reached]
        lines += [f"  {line}" for line in called_at(self.chain[1:])]
        if self.doubt:
            lines.append(f"  not certain: {self.doubt}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)

    def __rich__(self) -> Any:
        from rich.text import Text

        first, newline, more = str(self).partition("\n")
        return Text.assemble((first, "bold"), newline, more)


class _Asked:
    """Whether a predicate is true for a number."""

    def __init__(self, predicate: Predicate) -> None:
        self._predicate = predicate

    def severity(self, values: Any, xp: types.ModuleType) -> Any:
        if not jax.numpy.issubdtype(values.dtype, np.inexact):
            return xp.zeros(values.shape, np.int32)
        return xp.where(xp.asarray(self._predicate(values)), 1, 0)


@two_steps
def trace_back(f: Callable[P, Any], predicate: Predicate, *, inside: object = None) -> Callable[P, TracedBack | None]:
    """A function that runs `f` and finds the operation that made the predicate true for one of its results.

    Args:
        f: Any callable; jitted training steps are fine.
        predicate: Takes an array of floats, of NumPy or of JAX, and says for each element whether it has the property,
            as `lambda x: abs(x) > 1e4` or `lambda x: x == 0` does.
        inside: Functions, modules or packages whose values become sites, as in `sonde.capture`, to have names.

    Returns:
        A function with the arguments of `f`; it returns None if the predicate is true for no result.

    Raises:
        CaptureError: When called inside a transform, where there are no numbers yet.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from sonde.tools import trace_back
        >>> def f(x):
        ...     h = x * 200
        ...     h = h * 300
        ...     return h + 1
        >>> found = trace_back(f, lambda x: abs(x) > 1e4)(jnp.float32(1.0))
        >>> found.operation, found.element
        ('mul', '200 * 300')
        >>> loss = lambda w, x: jax.nn.relu(x @ w - 100).sum()
        >>> why_zero = trace_back(jax.grad(loss), lambda g: g == 0)(jnp.ones(3), jnp.ones((2, 3)))
        >>> why_zero.operation, why_zero.choice.partition(",")[0]
        ('constant', '-97 > 0 is false')
    """
    check_callable(f, "trace_back")
    check_callable(predicate, "trace_back: predicate")
    asked = inside_request(inside)

    def look_for(*args: P.args, **kwargs: P.kwargs) -> TracedBack | None:
        answer = search(f, args, kwargs, question=_Asked(predicate), inside=asked)
        if answer is None:
            return None
        birth = answer.birth
        made = explain.made(birth, "it", answer.labels)
        site = site_of(birth)
        return TracedBack(
            made.operation,
            made.operands,
            made.element,
            made.place.function,
            made.place.variable,
            made.place.source,
            site.path,
            site.gradient,
            iteration_of(birth.step.scene),
            site.example,
            made.around,
            _choice(birth),
            answer.results,
            explain.reached(birth, answer.turns, {1: "it"}, answer.labels),
            made.place.chain,
            answer.doubt or birth.doubt,
        )

    return wrapped_like(look_for, f)


def _choice(birth: Birth) -> str:
    choice = explain.choice_of(birth)
    if choice or birth.step.equation is not None or birth.step.slot < birth.step.scene.level.n_inputs:
        return choice
    if any(len(step.equation.inputs) > 1 for step in birth.way if step.equation is not None and _is_leaf(step)):
        return ""
    stops = explain.stopped_gradients(birth.way[0].scene)
    stopped = f", or only through stop_gradient: {'; '.join(stops)}" if stops else ""
    return f"nothing is computed for it: the result does not depend on it{stopped}"


def _is_leaf(step: Step) -> bool:
    return step.equation is not None and step.equation.name not in _jax.CALLS
