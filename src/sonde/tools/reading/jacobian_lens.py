"""The Jacobian lens: what does a value of a layer become in the last layer, on average over a corpus?

For every layer, the mean over texts and positions of the derivative of the last stream with respect to the value:

    matrix = mean over texts, positions p:  sum over positions q >= p:  d last[q] / d value[p]

Read with the model's output layer, `matrix @ value` says what a layer is disposed to make the model say, at once or
later in the text. Nothing is trained or drawn at random.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, ParamSpec

import jax
import jax.numpy as jnp
import numpy as np

from sonde.core import (
    ADDED,
    InsideRequest,
    JitByStaticPart,
    Pattern,
    StaticPart,
    Supplied,
    Where,
    arrays_in,
    capture,
    check_callable,
    check_patterns,
    inside_request,
    put_by_rule,
    static_and_arrays,
)
from sonde.errors import CaptureError
from sonde.tools.execution.record_values import Seen, each_seen
from sonde.tools.intervention.patch_values import recorded_here, values_to_place
from sonde.tools.reading.lens_maps import LensMap, LensMaps

P = ParamSpec("P")


def jacobian_lens(
    f: Callable[P, Any],
    *patterns: Pattern,
    last: Pattern,
    skip: int = 16,
    batch: int = 8,
    inside: object = None,
) -> JacobianLens[P]:
    """A function that returns the mean Jacobian from values at sites to the last stream.

    Args:
        f: Any callable. Models are not changed by the runs.
        *patterns: Which sites: the stream after each layer, `(texts, length, width)` or `(length, width)`.
        last: The site of the last stream, such as `blocks/29/out`, of the same shape.
        skip: How many positions at the start are left out, because attention gathers there; so is the last one.
        batch: How many rows of the matrices share a backward pass.
        inside: Functions, modules or packages whose values become sites, as in `sonde.capture`.

    Returns:
        A function with the arguments of `f` that returns `LensMaps`, for `logit_lens(maps=...)`, `direction` and
        `swap`. Its method `over` takes the arguments of several calls, and returns the mean over all their texts.

    Raises:
        NoSuchSiteError: When called: a pattern matches no site.
        CaptureError: When called: a site is in a loop without a name.
        ValueError: When called: texts are too short, or values are not as wide as the last.

    Example:
        >>> import jax.numpy as jnp, sonde
        >>> from sonde.tools import jacobian_lens
        >>> def f(x):
        ...     h = sonde.sow(x, "h")
        ...     return sonde.sow(h * jnp.array([2.0, 3.0]), "end")
        >>> print(jacobian_lens(f, "h", last="end", skip=0)(jnp.ones((4, 2)))["h"].matrix)
        [[2. 0.]
         [0. 3.]]
    """
    check_callable(f, "jacobian_lens")
    if not patterns:
        raise ValueError("jacobian_lens: name the sites of the stream, such as blocks/*/out")
    if skip < 0 or batch < 1:
        raise ValueError(f"jacobian_lens: skip is at least 0 and batch at least 1, got {skip} and {batch}")
    sites, (last_site,) = (check_patterns(given, "jacobian_lens") for given in (patterns, last))
    return JacobianLens(f, sites, last_site, skip, batch, inside)


class JacobianLens(Generic[P]):
    """What `jacobian_lens` returns: a function with the arguments of the program that returns `LensMaps`."""

    def __init__(
        self, f: Callable[P, Any], patterns: tuple[Pattern, ...], last: Pattern, skip: int, batch: int, inside: object
    ) -> None:
        self._f, self._inside = f, inside_request(inside)
        run = functools.partial(_jacobians, patterns, last, skip, batch, self._inside)
        self._compiled = JitByStaticPart.shared(run, f)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> LensMaps:
        """The lens of the texts in these arguments."""
        return self._mean([(args, kwargs)])

    def over(self, batches: Iterable[Any]) -> LensMaps:
        """The lens over several calls.

        Args:
            batches: For each call the arguments: a tuple, or the only one.
        """
        return self._mean([(x if isinstance(x, tuple) else (x,), {}) for x in batches])

    def _mean(self, calls: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]) -> LensMaps:
        total: dict[str, np.ndarray] = {}
        texts = 0
        for args, kwargs in calls:
            found, count = jax.device_get(self._compiled(*static_and_arrays((self._f, args, kwargs), self._inside)))
            texts += int(count)
            for path, matrix in found.items():
                total[path] = total.get(path, 0) + np.asarray(matrix, np.float64)
        if not texts:
            raise ValueError("jacobian_lens: there are no batches")
        zeros = {path: np.zeros(matrix.shape[1], np.float32) for path, matrix in total.items()}
        return LensMaps(
            {path: LensMap((m / texts).astype(np.float32), zeros[path]) for path, m in total.items()}, texts
        )


def _jacobians(
    patterns: tuple[Pattern, ...],
    last: Pattern,
    skip: int,
    batch: int,
    inside: InsideRequest | None,
    static: StaticPart,
    arrays: list[Any],
) -> tuple[dict[str, Any], int]:
    """By path, the sum over texts of the mean Jacobian; and how many texts there are."""
    f, args, kwargs = static.whole(arrays)
    _, records = values_to_place(f, *patterns, inside=inside)(*args, **kwargs)
    sites = {s.place[0]: s for s in each_seen(records, stacked=True)}
    zeros = {key: jnp.zeros_like(_array(seen)) for key, seen in sites.items()}

    def run(added: dict[tuple[str, int], Any]) -> Any:
        def rule(values: Sequence[Any], where: Where) -> Supplied | None:
            key = where.path, where.call
            return recorded_here(dataclasses.replace(sites[key], value=added[key]), where) if key in sites else None

        program = put_by_rule(f, rule, ADDED, paths=[path for path, _ in sites], inside=inside)
        ends = list(each_seen(capture(program, last, inside=inside)(*args, **kwargs)[1]))
        if len(ends) != 1 or any(axis.is_loop for axis in ends[0].axes):
            raise ValueError(f"jacobian_lens: last={last!r} must be one value, got {[end.path for end in ends]}")
        return _array(ends[0])

    end, pull_back = jax.vjp(run, zeros)
    *texts, length, width = end.shape
    if length - skip < 2:
        raise ValueError(
            f"jacobian_lens: texts of {length} positions are too short, because the first {skip} and the last one are "
            "left out; see skip="
        )
    counts = jnp.arange(length)[:, None]
    counts = (counts >= skip) & (counts < length - 1)

    def row(number: jax.Array) -> dict[tuple[str, int], Any]:
        (gradient,) = pull_back(
            jnp.where(counts, jnp.arange(width) == number, 0).astype(end.dtype) + jnp.zeros_like(end)
        )
        return {key: _summed(g, sites[key], counts, len(texts)) for key, g in gradient.items()}

    rows = jax.lax.map(row, jnp.arange(width), batch_size=min(batch, width))
    found = {}
    for seen in each_seen(records):
        key, numbers = seen.place
        if rows[key].shape[-1] != width:
            raise ValueError(f"jacobian_lens: {seen.path!r} is {rows[key].shape[-1]} wide, and {last!r} is {width}")
        name = f"{seen.path}[{seen.call}]" if seen.call else seen.path
        found[name] = rows[key][:, sites[key].row_numbers.index(numbers)] / (length - 1 - skip)
    return found, int(np.prod(texts, dtype=np.int64))


def _array(seen: Seen) -> Any:
    (whole,) = arrays_in(seen.value)
    if seen.count is not None or any(axis.is_loop and axis.rows is None for axis in seen.axes):
        raise CaptureError(
            f"jacobian_lens: {seen.path!r} ({seen.site.source}) is in a loop that has no name; run it in a scope that "
            "names it, as in `with sonde.scope('blocks/*')` around jax.lax.scan"
        )
    return whole


def _summed(gradient: jax.Array, seen: Seen, counts: jax.Array, texts: int) -> jax.Array:
    """The sum over texts and the positions that count: rows of loops by width."""
    own = gradient.shape[seen.loops :]
    if len(own) != texts + 2:
        raise ValueError(
            f"jacobian_lens: {seen.path!r} has the shape {list(own)}, which is not that of the last stream"
        )
    flat = jnp.where(counts, gradient, 0).astype(jnp.float32).reshape(-1, *own)
    return jnp.sum(flat, tuple(range(1, flat.ndim - 1)))
