"""Direct logit attribution: what components, heads and neurons contribute to the logits.

The stream before the last norm is a sum of what components have written. If the number that the norm divides by is held
constant, the logits are a sum too. That number is not taken from the model: the output of an RMS norm or layer norm
does not change if its input is scaled, so the gradient of the readout misses exactly the part of a component along the
stream, and this part is added. The contributions of all components add up to the metric, less what biases contribute.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec

import jax
import jax.numpy as jnp
import numpy as np

from sonde._renames import accepts_old_keywords
from sonde.core import (
    ByPath,
    Pattern,
    Records,
    check_callable,
    check_patterns,
    glob_matches,
    inside_request,
    two_steps,
    wrapped_like,
)
from sonde.tools.execution.compiled_reading import CompiledReading
from sonde.tools.execution.record_values import Seen
from sonde.tools.execution.unbatched import records_whole, seen_whole
from sonde.tools.reading.heatmap import Drawn, Heat, by_last_axis

P = ParamSpec("P")


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class LogitAttribution(ByPath[jax.Array], Drawn):
    """What each component contributes, by path: a number, or an array with an axis for heads or neurons.

    Attributes:
        contributions: By path.
        output: The metric.
    """

    contributions: dict[str, jax.Array]
    output: jax.Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "_found", self.contributions)

    @property
    def totals(self) -> dict[str, float]:
        """The sum of what each component contributes."""
        return {path: float(jnp.sum(x)) for path, x in self.items()}

    def _heat(self) -> Heat:
        found = {path: np.asarray(x) for path, x in self.contributions.items()}
        return by_last_axis(found, f"contributions to {float(self.output):.6g}", "head or neuron")

    def best(self, n: int = 5) -> list[tuple[str, tuple[int, ...], float]]:
        """The largest contributions: path, index of the head or neuron, and how much."""
        points = [(p, index, float(x)) for p, xs in self.items() for index, x in np.ndenumerate(np.asarray(xs))]
        return sorted(points, key=lambda point: -abs(point[2]))[:n]

    def __repr__(self) -> str:
        return f"LogitAttribution({float(self.output):.6g}, {len(self)} components)"

    def __rich__(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        from sonde.display import WholePaths

        table = Table("component", "total", "most", "at", title=f"contributions to {float(self.output):.6g}")
        for path, total in self.totals.items():
            x = np.asarray(self[path])
            at = np.unravel_index(int(np.argmax(np.abs(x))), x.shape) if x.ndim else ()
            table.add_row(Text(path), f"{total:.4g}", f"{x[at]:.4g}", ",".join(map(str, at)))
        return WholePaths(table)


@accepts_old_keywords("sonde.tools.logit_attribution")
@two_steps
def logit_attribution(
    f: Callable[P, Any],
    *components: Pattern,
    residual: str,
    readout: Callable[[Any], Any],
    metric: Callable[[Any], Any],
    position: int = -1,
    writes: Mapping[str, Any] | None = None,
    inside: object = None,
) -> Callable[P, LogitAttribution]:
    """A function that runs `f` and returns what components contribute directly to a metric of the logits.

    Args:
        f: Any callable.
        *components: Sites whose values are added to the stream, `(batch, length, width)`, or whose values are written
            to it by a matrix in `writes`. There may be an axis for heads before the last. The axes of `vmap` count.
        residual: The path of the residual stream before the last norm, such as `blocks/29/out`.
        readout: A function of the stream that returns logits: the model's last norm and output layer.
        metric: A function of the logits at one position, `(batch, vocabulary)`, that returns a number; linear, such as
            the difference of two logits.
        position: The position whose logits are explained.
        writes: For globs over paths, how units get into the stream: a matrix `(units, width)`, one for heads
            `(heads, depth, width)`, or a function of the path that returns one. Every unit, or head, is then a separate
            contribution.
        inside: Functions, modules or packages whose values become sites, as in `sonde.capture`.

    Returns:
        A function with the arguments of `f` that returns a `LogitAttribution`.

    Raises:
        NoSuchSiteError: When called: a pattern matches no site.
        ValueError: When called: a component is not as wide as the stream, or has several values.

    Example:
        >>> import jax.numpy as jnp, sonde
        >>> from sonde.tools import logit_attribution
        >>> table = jnp.eye(4)[:, :3]
        >>> def readout(x):
        ...     return x / jnp.sqrt(jnp.mean(x**2, -1, keepdims=True)) @ table
        >>> def f(x):
        ...     a = sonde.sow(x, "a")
        ...     b = sonde.sow(2 * x[..., ::-1], "b")
        ...     return readout(sonde.sow(a + b, "end"))
        >>> x = jnp.arange(4.0).reshape(1, 1, 4)
        >>> found = logit_attribution(f, "a", "b", residual="end", readout=readout, metric=lambda y: y[0, 2])(x)
        >>> print(f"{float(found['a'] + found['b']):.4f} {float(f(x)[0, 0, 2]):.4f}")
        0.8627 0.8627
    """
    check_callable(f, "logit_attribution")
    check_callable(readout, "logit_attribution: readout")
    chosen = check_patterns(components, "logit_attribution")
    asked = inside_request(inside)
    matrices = dict(writes or {})

    def read(f: Callable[..., Any], args: Any, kwargs: Any) -> Records:
        return records_whole(f, (residual, *chosen), args, kwargs, reduce=lambda x: x[:, position], inside=asked)

    run = CompiledReading(read, f, inside=asked)

    def attributed(*args: P.args, **kwargs: P.kwargs) -> LogitAttribution:
        every = list(seen_whole(run(f, args, kwargs)))
        length = next(seen for seen, _ in every if seen.path == residual).types[0].shape[1]
        values: dict[str, Any] = {}
        for seen, is_reduced in every:
            if seen.call or seen.loops:
                raise ValueError(
                    f"logit_attribution: {seen.path!r} ({seen.site.line}) has several values, of "
                    f"{'a loop' if seen.loops else 'several calls'}; name a site that runs once"
                )
            values[seen.path] = seen.value if is_reduced else _at_position(seen, position, length)
        end = values[residual]
        share = _shares(readout, metric, end)
        found = {}
        for path, value in values.items():
            if path == residual and not any(isinstance(p, str) and glob_matches(p, path) for p in chosen):
                continue
            written = _written(path, value, matrices)
            if written.shape[-1] != end.shape[-1] or written.shape[0] != end.shape[0]:
                raise ValueError(
                    f"logit_attribution: {path!r} has the shape {list(written.shape)} at a position, and the stream "
                    f"{list(end.shape)}; give a matrix in writes= for what is not as wide as the stream"
                )
            found[path] = share(written)
        return LogitAttribution(found, metric(readout(end[:, None])[:, 0]))

    return wrapped_like(attributed, f)


def _at_position(seen: Seen, position: int, length: int) -> Any:
    """The part of a mapped value at a position: the second axis, or the third after heads that are mapped too."""
    value = seen.value
    fits = [axis for axis in (1, 2)[: max(1, value.ndim - 2)] if value.shape[axis] == length]
    if len(fits) == 1:
        return jnp.take(value, position, axis=fits[0])
    raise ValueError(
        f"logit_attribution: {seen.path!r} ({seen.site.line}) has the shape {list(value.shape)} with the axes of "
        f"`vmap`; the positions, {length} of them, should be along its second or third axis, and not along both"
    )


def _written(path: str, value: Any, matrices: Mapping[str, Any]) -> Any:
    """What a component writes: `(batch, ..., width)`."""
    for glob, given in matrices.items():
        if glob_matches(glob, path):
            matrix = jnp.asarray(given(path) if callable(given) else given)
            if matrix.ndim == 3:  # heads, depth, width
                return jnp.einsum("bhd,hdw->bhw", value, matrix)
            return value[..., None] * matrix
    return value


def _shares(readout: Callable, metric: Callable, end: jax.Array) -> Callable[[Any], Any]:
    """A function of a part of the stream: its contribution, with the number that the norm divides by held constant."""

    def number(x: jax.Array) -> Any:
        return metric(readout(x[:, None])[:, 0])

    output, gradient = jax.value_and_grad(number)(end)
    # A layer norm subtracts the mean first: adding the same number to every feature changes nothing.
    moved = jnp.abs(number(end + 0.5 * jnp.std(end)) - output)
    centered = moved <= 1e-3 * (jnp.abs(output) + jnp.linalg.norm(gradient) * jnp.linalg.norm(end))

    def off_mean(x: jax.Array) -> Any:
        return jnp.where(centered, x - jnp.mean(x, -1, keepdims=True), x)

    # Each example has its own scale, and its own part of the metric, which is linear.
    logits = readout(end[:, None])[:, 0]
    alone = jnp.eye(len(end))[:, :, None] * logits
    own = jax.vmap(metric)(alone) - metric(jnp.zeros_like(logits))
    axis = off_mean(end)
    size = jnp.sum(axis**2, -1)

    def share(part: Any) -> Any:
        shape = (end.shape[0], *[1] * (part.ndim - 2), end.shape[1])
        along = jnp.sum(off_mean(part) * axis.reshape(shape), -1) / size.reshape(shape[:-1])
        direct = jnp.sum(part * gradient.reshape(shape), -1)
        return jnp.sum(direct + along * own.reshape(shape[:-1]), 0)

    return share
