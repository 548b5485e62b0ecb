"""`site_gradients`: the gradient of a number at every site, whatever the values there are computed from."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from sonde import _jax
from sonde._array_text import describe
from sonde.core import (
    ADDED,
    InsideRequest,
    JitByStaticPart,
    Near,
    Pattern,
    Records,
    StaticPart,
    Supplied,
    Where,
    capture,
    check_callable,
    check_patterns,
    inside_request,
    put_by_rule,
    static_and_arrays,
    two_steps,
    wrapped_like,
)
from sonde.tools.attribution.integrated_gradients import is_inexact

P = ParamSpec("P")
R = TypeVar("R")


@two_steps
def site_gradients(
    f: Callable[P, R], *patterns: Pattern, metric: Callable[[R], Any] | None = None, inside: object = None
) -> Callable[P, tuple[Any, Records]]:
    """A function that runs `f` and returns a number with its gradient at every site.

    Nothing has to be differentiated by hand, and nothing before a site has to be differentiable: a model of tokens has
    gradients at its embeddings.

    Args:
        f: Any callable. Models are not changed by the run.
        *patterns: Which sites, as in `sonde.capture`. All, if none are given.
        metric: A function of the result of `f` that returns a number. None if the result is one.
        inside: Functions, modules or packages whose values become sites, as in `sonde.capture`.

    Returns:
        A function with the arguments of `f` that returns the number, and records with `value` and `grad`.

    Raises:
        NoSuchSiteError: When called: a pattern matches no site.
        ValueError: When called: the result is not a number.

    Example:
        >>> import jax.numpy as jnp, sonde
        >>> from sonde.tools import site_gradients
        >>> table = jnp.array([[1.0, 2.0], [3.0, 4.0]])
        >>> def f(tokens):
        ...     return jnp.sum(sonde.sow(table[tokens], "embedded") ** 2)
        >>> number, records = site_gradients(f)(jnp.array([1]))
        >>> print(number, records["embedded"].grad)
        25.0 [[6. 8.]]
    """
    check_callable(f, "site_gradients")
    asked = inside_request(inside)
    patterns = check_patterns(patterns, "site_gradients")
    compiled = JitByStaticPart.shared(functools.partial(_run, patterns, metric, asked), f, metric)

    def with_gradients(*args: P.args, **kwargs: P.kwargs) -> tuple[Any, Records]:
        return compiled(*static_and_arrays((f, args, kwargs), asked))

    return wrapped_like(with_gradients, f)


def _run(
    patterns: tuple[Pattern, ...], metric: Any, inside: InsideRequest | None, rest: StaticPart, arrays: Sequence[Any]
) -> Any:
    return number_and_gradients(patterns, metric, inside, rest.whole, arrays)


def number_and_gradients(
    patterns: Sequence[Pattern],
    metric: Callable | None,
    inside: InsideRequest | None,
    call: Callable[[list[Any]], Any],
    arrays: Sequence[Any],
    changed: Callable[[Callable], Callable] | None = None,
) -> tuple[Any, Records]:
    """The number and the records of a traced call, for tools.

    Args:
        patterns: Which sites.
        metric: A function of the result; None if the result is the number.
        inside: As in `sonde.capture`.
        call: Puts arrays into the program, its arguments and its keyword arguments.
        arrays: The arrays.
        changed: Makes the program one with other values at its sites.
    """
    in_place: list[str] = []

    def of_program(arrays_are_touched: bool) -> tuple[Any, Records]:
        def number(touch: jax.Array) -> Any:
            # Whatever a value is computed from, it now depends on what is differentiated.
            def rule(values: Sequence[Any], where: Where) -> Supplied | None:
                if where.site.in_place:
                    in_place.append(where.path)
                    return None
                return Supplied([[touched(_jax.zeros_of_type(_jax.typeof(x)), touch) for x in values]])

            f, args, kwargs = call([touched(x, touch) for x in arrays] if arrays_are_touched else list(arrays))
            program = f if changed is None else changed(f)
            at = Near(tuple(patterns)) if patterns else None
            return number_of(metric, put_by_rule(program, rule, ADDED, paths=at, inside=inside)(*args, **kwargs))

        (output, _), records = capture(jax.value_and_grad(number), *patterns, grads=True, inside=inside)(jnp.zeros(()))
        return output, records

    # A value that is marked in place cannot be made to depend on anything there: what it is computed from must. The
    # gradients of all weights would then be part of the program, so this is done for such sites alone.
    found = of_program(False)
    return of_program(True) if in_place else found


def number_of(metric: Callable | None, result: Any) -> Any:
    """The number that is explained: the metric of a result. Raises ValueError if it is not a number."""
    number = result if metric is None else metric(result)
    if not hasattr(number, "dtype") or jnp.shape(number) != () or not jnp.issubdtype(number.dtype, jnp.floating):
        found = describe(number) if hasattr(number, "dtype") else repr(type(number).__name__)
        raise ValueError(f"attribute explains a number, got {found}; give a metric= that computes one from the result")
    return number


def touched(x: jax.Array, zero: jax.Array) -> Any:
    """The same number, made to depend on a zero that is differentiated.

    A value that `Module.sow` marks in place can only be replaced there if it is part of the differentiated program.
    """
    return x + zero.astype(x.dtype) if is_inexact(x) else x
