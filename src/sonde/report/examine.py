"""`examine`: runs a program once and reports on it, problems first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec

import jax
import jax.numpy as jnp
import numpy as np

from sonde._renames import accepts_old_keywords
from sonde.core import InsideRequest, Pattern, check_callable, check_patterns, inside_request, two_steps, wrapped_like
from sonde.errors import SondeError
from sonde.report.arguments import examined_arguments
from sonde.report.failure import Failure, failure
from sonde.report.findings import find
from sonde.report.findings.nonfinite import has_bad_values
from sonde.report.record_run import Watched, watch
from sonde.report.report import Report
from sonde.report.site_data import examined
from sonde.tools.execution.record_values import on_host
from sonde.tools.numerics.nonfinite import NonFinite, first_nonfinite
from sonde.tools.numerics.summarize import Summary
from sonde.tools.reading.token_labels import Labels, TokenNames, words

P = ParamSpec("P")

Progress = Callable[[str, float], None]


@accepts_old_keywords("sonde.report.examine")
@two_steps
def examine(
    f: Callable[P, Any],
    *patterns: Pattern,
    grads: bool = False,
    inside: object = None,
    title: str | None = None,
    tokens: Labels | None = None,
    tokenizer: TokenNames | None = None,
    progress: Progress | None = None,
) -> Callable[P, Report]:
    """Makes a function that runs `f` once, examines the values at its sites, and returns a report.

    Statistics and pictures are made on the device; no whole activation leaves it.

    Args:
        f: Any callable: a function, a jitted training step, a model.
        *patterns: Which sites, as in `sonde.capture`. All, if none are given.
        grads: Whether to examine gradients too, of what is differentiated inside `f`.
        inside: Functions, modules or packages whose values become sites, as in `sonde.capture`.
        title: The title of the report; the name of `f` by default.
        tokens: Labels of the positions, for pictures of attention and of values by position: strings, or token ids; for
            a batch, those of the first example.
        tokenizer: Turns token ids into strings: a function, a list of strings, or a tokenizer (with `decode`).
        progress: Called with the current activity and the fraction done, from 0 to 1.

    Returns:
        A function with the arguments of `f` that returns a `Report`. If `f` fails, it is run a second time with nothing
        compiled, so that there are values up to the failure, and the report describes the failure.

    Raises:
        NoSuchSiteError: When called: a pattern matches no site.
        CaptureError: When called inside a transform, where there are no numbers yet.

    Example:
        >>> import jax, jax.numpy as jnp, sonde
        >>> from sonde.report import examine
        >>> def f(x):
        ...     x = sonde.sow(x * 1e30, "scaled")
        ...     return sonde.sow(x * x, "squared").sum()
        >>> report = examine(f)(jnp.array([1.0, 1e-30]))
        >>> report.findings[0].severity, report.findings[0].path
        ('problem', 'squared')
    """
    check_callable(f, "examine")
    checked = check_patterns(patterns, "examine")
    request = inside_request(inside)
    name = title if title is not None else getattr(f, "__name__", None) or type(f).__name__
    read = () if tokens is None else tuple(words(tokens, tokenizer))
    say = progress or (lambda what, done: None)

    def run(*args: P.args, **kwargs: P.kwargs) -> Report:
        say("running the program", 0.0)
        arguments = examined_arguments(f, args, kwargs, request)
        # The program may put new arrays into its arguments; a search afterwards must start from the old ones.
        leaves, structure = jax.tree.flatten((args, kwargs))
        seen = watch(f, checked, args, kwargs, grads=grads, inside=request)
        failed = None
        if seen.error is not None:
            say("running it again without compiling", 0.4)
            seen, failed = _again(f, checked, args, kwargs, grads, request, seen)
        say("reading what was seen", 0.7)
        sites, rows = examined(on_host(seen.records, "examine"))
        say("looking for trouble", 0.9)
        is_finite = _is_finite(seen.result)
        origin = None
        if not is_finite or seen.error is not None or any(map(has_bad_values, sites)):
            say("looking for the operation that is to blame", 0.92)
            old_args, old_kwargs = jax.tree.unflatten(structure, leaves)
            origin = _origin(f, old_args, old_kwargs, request)
        findings = find(sites, origin, arguments, failed=failed is not None, finite_result=is_finite)
        if failed is not None:
            findings = (failed.finding, *findings)
        say("done", 1.0)
        return Report(
            name, findings, tuple(sites), Summary(rows), failed, seen.result, tokens=read, arguments=arguments
        )

    return wrapped_like(run, f)


def _again(
    f: Any, wanted: Any, args: Any, kwargs: Any, grads: bool, inside: InsideRequest | None, first: Watched
) -> tuple[Watched, Failure]:
    """After a failure, runs again without compiling; returns the run that shows more."""
    assert first.error is not None
    try:
        with jax.disable_jit():
            second = watch(f, wanted, args, kwargs, grads=grads, inside=inside)
    except SondeError:  # a pattern matches nothing now that the program runs to its end: keep the first run
        second = first
    if second.error is None:
        return second, failure(first.error, first.last_site, only_compiled=True)
    best = second if len(second.records) >= len(first.records) else first
    assert best.error is not None
    return best, failure(best.error, best.last_site, only_compiled=False)


def _is_finite(result: Any) -> bool:
    """Whether all numbers that a program returned are finite."""
    floats = [x for x in jax.tree.leaves(result) if isinstance(x, (jax.Array, np.ndarray, np.generic, float, complex))]
    floats = [x for x in map(jnp.asarray, floats) if jnp.issubdtype(x.dtype, jnp.inexact)]
    return all(bool(jnp.isfinite(x).all()) for x in floats)


def _origin(
    f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], inside: InsideRequest | None
) -> NonFinite | None:
    """The operation that made the first value that is not finite; None if that cannot be told."""
    try:
        return first_nonfinite(f, inside=inside, discarded=True)(*args, **kwargs)
    except Exception:  # what the program raises is reported already
        return None
