"""How much does each value at a site contribute to a number? `attribute`, by two methods.

`"gradient"` is gradient times value: one forward and one backward pass for all sites, and, to first order, the effect
of removing a value. `"integrated"` averages the gradient along the straight line from a baseline to the value: it costs
`steps` passes per site, and the contributions add up exactly to the change that they explain.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from sonde.core import (
    ByPath,
    InsideRequest,
    JitByStaticPart,
    Pattern,
    Record,
    StaticPart,
    check_callable,
    check_patterns,
    inside_request,
    static_and_arrays,
    two_steps,
    wrapped_like,
)
from sonde.tools.attribution.integrated_gradients import is_inexact, mean_gradients
from sonde.tools.attribution.site_gradients import number_and_gradients, number_of, touched
from sonde.tools.execution.record_values import each_seen, with_values
from sonde.tools.intervention.patch_values import values_to_place
from sonde.tools.reading.heatmap import Drawn, Heat

P = ParamSpec("P")
R = TypeVar("R")

Method = Literal["gradient", "integrated"]


class Attribution(ByPath[tuple[Any, ...]], Drawn):
    """Contributions by path: one pytree per call, shaped like the recorded values (axes of loops first)."""

    def __init__(self, scores: Mapping[str, tuple[Any, ...]], output: Any) -> None:
        super().__init__(scores)
        self.output = output
        """The number that is explained."""

    @property
    def totals(self) -> dict[str, float]:
        """The sum of the contributions under each path."""
        return {path: sum(float(jnp.sum(x)) for x in jax.tree.leaves(found)) for path, found in self.items()}

    def _heat(self) -> Heat:
        totals = np.array(list(self.totals.values()), float)[:, None]
        return Heat(totals, list(self), ["total"], f"contributions to {float(self.output):.6g}")

    def __repr__(self) -> str:
        return f"Attribution({float(self.output):.6g}, {self.totals})"

    def __rich__(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        from sonde.display import WholePaths

        table = Table("site", "total", "most", "least", title=f"contributions to {float(self.output):.6g}")
        for path, total in self.totals.items():
            flat = np.concatenate([np.ravel(x) for x in jax.tree.leaves(self[path])] or [np.zeros(1)])
            table.add_row(Text(path), f"{total:.4g}", f"{flat.max():.4g}", f"{flat.min():.4g}")
        return WholePaths(table)


@two_steps
def attribute(
    f: Callable[P, R],
    *patterns: Pattern,
    metric: Callable[[R], Any] | None = None,
    method: Method = "gradient",
    baseline: Any = 0.0,
    steps: int = 32,
    inside: object = None,
) -> Callable[P, Attribution]:
    """A function that runs `f` and returns how much the values at its sites contribute to its result.

    Args:
        f: Any callable. Models are not changed by the runs.
        *patterns: Which sites, as in `sonde.capture`. All, if none are given.
        metric: A function of the result of `f` that returns a number. None if the result is one.
        method: `"gradient"`: gradient times the value's distance from the baseline. `"integrated"`: the mean gradient
            along the line between them, times that distance; all calls of a site are interpolated together, and so are
            all iterations of a loop, unless the loop has a name: then each row is a site.
        baseline: What values are compared with: a number that stands for "no value"; or the arguments of another run,
            such as a corrupted input: a tuple, or the only argument. With `"gradient"` the latter is attribution
            patching: for all sites, what putting the other run's value there would change, in one backward pass.
        steps: How many points of the line to use.
        inside: Functions, modules or packages whose values become sites, as in `sonde.capture`.

    Returns:
        A function with the arguments of `f` that returns an `Attribution`. Parts that cannot be differentiated
        (integers) contribute zero.

    Raises:
        NoSuchSiteError: When called: a pattern matches no site.
        CaptureError: When called: a site is in a `while_loop`, which cannot be differentiated.
        ValueError: The method is unknown; or, when called, the result is not a number.

    Example:
        >>> import jax.numpy as jnp, sonde
        >>> from sonde.tools import attribute
        >>> def f(x):
        ...     return jnp.sum(sonde.sow(x * 2, "h") ** 2)
        >>> found = attribute(f)(jnp.array([1.0, 3.0]))
        >>> print(found["h"][0], attribute(f, method="integrated")(jnp.array([1.0, 3.0]))["h"][0])
        [ 8. 72.] [ 4. 36.]
    """
    check_callable(f, "attribute")
    if metric is not None:
        check_callable(metric, "attribute: metric")
    if method not in ("gradient", "integrated"):
        raise ValueError(f"attribute: the method is 'gradient' or 'integrated', got {method!r}")
    if steps < 1:
        raise ValueError(f"attribute: steps must be at least 1, got {steps}")
    asked = inside_request(inside)
    patterns = check_patterns(patterns, "attribute")
    by = _by_gradient if method == "gradient" else _integrated
    compiled = JitByStaticPart.shared(functools.partial(by, patterns, metric, steps, asked), f, metric)

    def attributed(*args: P.args, **kwargs: P.kwargs) -> Attribution:
        other: Any = (baseline if isinstance(baseline, tuple) else (baseline,)), kwargs
        call = f, args, kwargs, np.asarray(baseline, float) if isinstance(baseline, (int, float)) else other
        found, output = compiled(*static_and_arrays(call, asked))
        return Attribution({path: record.values for path, record in found.items()}, output)

    return wrapped_like(attributed, f)


def _by_gradient(
    patterns: tuple[Pattern, ...],
    metric: Any,
    steps: int,
    inside: InsideRequest | None,
    rest: StaticPart,
    arrays: Sequence[jax.Array],
) -> Any:
    del steps
    output, records = number_and_gradients(patterns, metric, inside, lambda x: rest.whole(x)[:3], arrays)
    base = _base_values(patterns, inside, rest, arrays)
    found: dict[str, Any] = {}
    for path, record in records.stacked.items():
        grads = record.grads or (None,) * len(record.values)
        bases = base(record)
        found[path] = tuple(_times(v, g, b) for v, g, b in zip(record.values, grads, bases))
    return with_values(records, found), output


def _base_values(
    patterns: tuple[Pattern, ...],
    inside: InsideRequest | None,
    rest: StaticPart,
    arrays: Sequence[jax.Array],
) -> Callable[[Record], tuple[Any, ...]]:
    """What the values of a record are compared with: a number, or the values of another run."""
    f, _, _, other = rest.whole(arrays)
    if not isinstance(other, tuple):
        return lambda record: tuple(jax.tree.map(lambda _: other, value) for value in record.values)
    args, kwargs = other
    _, records = values_to_place(f, *patterns, inside=inside)(*args, **kwargs)

    def of(record: Record) -> tuple[Any, ...]:
        found = records.stacked[record.path].values if record.path in records.stacked else ()
        if _shapes(found) != _shapes(record.values):
            raise ValueError(
                f"attribute: the values at {record.path!r} have the shapes {_shapes(record.values)} in this run and "
                f"{_shapes(found)} in that of baseline=; both must have the same"
            )
        return found

    return of


def _shapes(values: Any) -> list[tuple[int, ...]]:
    return [jnp.shape(x) for x in jax.tree.leaves(values)]


def _times(value: Any, gradient: jax.Array | None, base: jax.Array) -> Any:
    def product(x: jax.Array, g: jax.Array | None, b: jax.Array) -> Any:
        if not is_inexact(x):
            return jnp.zeros(jnp.shape(x)) if hasattr(x, "dtype") else x
        return jnp.zeros_like(x) if g is None else (x - jnp.asarray(b, x.dtype)) * g

    if gradient is None:
        return jax.tree.map(lambda x, b: product(x, None, b), value, base)
    return jax.tree.map(product, value, gradient, base)


def _integrated(
    patterns: tuple[Pattern, ...],
    metric: Any,
    steps: int,
    inside: InsideRequest | None,
    rest: StaticPart,
    arrays: Sequence[jax.Array],
) -> Any:
    f, args, kwargs, _ = rest.whole(arrays)
    result, records = values_to_place(f, *patterns, inside=inside)(*args, **kwargs)
    base = _base_values(patterns, inside, rest, arrays)

    def number(changed: Callable[[Callable], Callable], touch: jax.Array) -> Any:
        f, args, kwargs, _ = rest.whole([touched(x, touch) for x in arrays])
        return number_of(metric, changed(f)(*args, **kwargs))

    found: dict[str, Any] = {}
    for path, record in records.stacked.items():
        bases = base(record)
        calls = [seen for seen in each_seen(records, stacked=True) if seen.path == path]
        gradients = mean_gradients(calls, bases, number, steps, inside)
        whole = []
        for value, base_value, of_call in zip(record.values, bases, gradients):
            remaining = iter(of_call)
            of_leaves = jax.tree.map(lambda x, r=remaining: next(r) if hasattr(x, "dtype") else x, value)
            whole.append(_times(value, of_leaves, base_value))
        found[path] = tuple(whole)
    return with_values(records, found), number_of(metric, result)
