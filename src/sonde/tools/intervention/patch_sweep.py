"""Activation patching: which values, at which positions, carry what a metric measures?

Every point of the sweep is a run on the corrupt input in which one position of one site has its value from the clean
run. `vmap` runs over the numbers of the points; a site compares the number with its own and selects the clean value.
All of it is one compiled call. `points.py` says what the points of a site are, `sweep.py` what comes out.

Sites that follow one another form a group, and each group has a `vmap`: what comes before the first site of a group is
the same for all its points and is computed once. With as many groups as sites that saves half the work, but the program
gets longer. The number of groups is chosen so that the first answer comes soonest, by an estimate of the time to
compile and to run the program (`effort`). A CPU is fastest with few points at a time, which fit into its cache.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from sonde._array_text import describe
from sonde._renames import accepts_inputs_first
from sonde.core import (
    InsideRequest,
    JitByStaticPart,
    Pattern,
    StaticPart,
    arrays_in,
    check_callable,
    check_patterns,
    explains_arguments,
    inside_request,
    static_and_arrays,
)
from sonde.tools.execution.cost_estimate import effort
from sonde.tools.execution.record_values import each_seen
from sonde.tools.intervention.patch_values import values_to_place
from sonde.tools.intervention.sweep import Sweep
from sonde.tools.intervention.sweep_points import Axes, PointRule, Target, checked_axes
from sonde.tools.reading.heatmap import POSITION
from sonde.tools.reading.token_labels import input_words

R = TypeVar("R")

_MOST_GROUPS = 12


class _Device(NamedTuple):
    """The largest number of points to run at a time, and roughly how many operations the device does per second."""

    most: int | None
    speed: float


_CPU, _ACCELERATOR = _Device(64, 5e10), _Device(None, 2e13)


@accepts_inputs_first("sonde.tools.patch_sweep", ("sites", "metric", "axis"))
@explains_arguments
def patch_sweep(
    f: Callable[..., R],
    *patterns: Pattern,
    metric: Callable[[R], Any],
    axis: int | Sequence[int] | None = -2,
    directions: ArrayLike | None = None,
    chunk: int | None = None,
    inside: object = None,
) -> Callable[[Any, Any], Sweep]:
    """A function that runs `f` on the corrupt input once for every position of every site, with the clean value there.

    The sweep is one compiled call. It is compiled again for another function, metric or shape; the last few are
    remembered as long as `f` is, by the identity of `f` and `metric`, so define them once.

    Args:
        f: Any callable. Models are not changed by the runs.
        *patterns: Which sites, as in `sonde.capture`; at least one.
        metric: A function of the result of `f` that returns a number.
        axis: The axis of the positions, or several axes: `(-3, -2)` patches every head at every position. A negative
            number counts from the end; others do not count the axes that `vmap` puts in front. None patches whole
            values. In loops, every iteration is a point.
        directions: One or several vectors along the last axis of the values. Only the part of the clean value along one
            of them is then put in place, and the scores have one more axis, for the directions.
        chunk: How many points to run at a time; fewer need less memory. If None, a few on a CPU, elsewhere all.
        inside: Functions, modules or packages whose values become sites, as in `sonde.capture`.

    Returns:
        A function `sweep(clean, corrupt)` that returns a `Sweep`. Each of the two is the arguments of a run of `f`: a
        tuple, or the only argument. Both have the same shapes.

    Raises:
        NoSuchSiteError: A pattern matches no site.
        CaptureError: A site is in a `while_loop`, whose iterations are not recorded.
        ValueError: A value has no such axis, the metric is not a number, the two inputs have different shapes, or
            `chunk` is less than 1.

    Example:
        >>> import jax.numpy as jnp, sonde
        >>> from sonde.tools import patch_sweep
        >>> def f(x):
        ...     return sonde.sow(x * 2, "h")[1]
        >>> sweep = patch_sweep(f, "h", metric=jnp.sum)(jnp.ones((3, 4)), jnp.zeros((3, 4)))
        >>> print(sweep.restored["h"])
        [0. 1. 0.]
    """
    check_callable(f, "patch_sweep")
    check_callable(metric, "patch_sweep: metric")
    patterns = check_patterns(patterns, "patch_sweep")
    if not patterns:
        raise ValueError("patch_sweep needs at least one pattern, such as 'blocks/*/attn'")
    axes = checked_axes(axis)
    along = _checked_directions(directions)
    if chunk is not None and chunk < 1:
        raise ValueError(f"patch_sweep: chunk must be at least 1, got {chunk}")
    request = inside_request(inside)
    device = _CPU if jax.default_backend() == "cpu" else _ACCELERATOR
    if chunk is not None:
        device = device._replace(most=chunk)
    compiled = JitByStaticPart.shared(functools.partial(_sweep, patterns, metric, axes, device, request), f, metric)

    def sweep(clean: Any, corrupt: Any) -> Sweep:
        inputs = [x if isinstance(x, tuple) else (x,) for x in (clean, corrupt)]
        shapes = [[describe(x) for x in arrays_in(arguments)] for arguments in inputs]
        if shapes[0] != shapes[1]:
            raise ValueError(
                "patch_sweep puts values of the clean run into the corrupt one, so both inputs must have the same "
                f"arrays; the clean one has {', '.join(shapes[0])}, the corrupt one {', '.join(shapes[1])}"
            )
        static, arrays = static_and_arrays((f, *inputs, along), request)
        scores, of_clean, of_corrupt = compiled(static, arrays)
        # What the columns of the scores count, for pictures and tables.
        index = f"index along axis {axes[-1]}" if axes and axes != (-2,) else POSITION
        columns = "direction" if along is not None else index
        prompts = zip(*(input_words(f, arguments) for arguments in inputs))
        labels = tuple(one if one == other else f"{other} → {one}" for one, other in prompts)
        by_name = {name: score for (_, name), score in sorted(scores.items())}
        return Sweep(by_name, of_clean, of_corrupt, columns, labels)

    return sweep


def _checked_directions(directions: Any) -> Any:
    if directions is None:
        return None
    found = np.atleast_2d(np.asarray(directions, np.float32))
    sizes = np.linalg.norm(found, axis=-1, keepdims=True)
    if found.ndim != 2 or not (np.isfinite(sizes) & (sizes > 0)).all():
        raise ValueError(f"patch_sweep: directions= must be nonzero vectors, got shape {np.shape(directions)}")
    return found / sizes


def _sweep(
    patterns: tuple[Pattern, ...],
    metric: Callable,
    axes: Axes,
    device: _Device,
    inside: InsideRequest | None,
    rest: StaticPart,
    arrays: list[Any],
) -> Any:
    """The scores by place and name, and the metrics of the clean and the corrupt run."""

    def measured(result: Any) -> Any:
        score = metric(result)
        if jnp.shape(score) != ():
            raise ValueError(f"patch_sweep: the metric must be a number, got an array of shape {jnp.shape(score)}")
        return score

    f, clean, _, directions = rest.whole(arrays)
    result, records = values_to_place(f, *patterns, inside=inside)(*clean)
    targets = [Target.of(seen, axes, directions) for seen in each_seen(records, stacked=True)]

    def run(group: Sequence[Target], point: jax.Array) -> Any:
        # A copy for every run: changes that one run makes to a model must not reach the next.
        f, _, corrupt, _ = rest.whole(arrays)
        return measured(PointRule(group, point).applied_to(f, inside)(*corrupt))

    needed = effort(lambda arrays: _corrupt_run(rest, arrays), arrays)
    running = needed.operations * sum(target.points for target in targets) / device.speed
    scores = []
    groups = _groups(targets, math.sqrt(running / needed.compiling))
    for group in groups:
        # In one more run, the last, nothing is put in place: the corrupt run needs no separate program.
        total = sum(target.points for target in group) + (group is groups[-1])
        scores.append(_mapped(functools.partial(run, group), total, device.most))
    *parts, unchanged = jnp.split(jnp.concatenate(scores), np.cumsum([target.points for target in targets]))
    # The rows of a named loop come one after the other, like those of a Python loop.
    found, began = {}, {}
    whole = not axes and directions is None  # one point, with an axis as for several
    for number, (target, part) in enumerate(zip(targets, parts)):
        first = began.setdefault(target.seen.path.split("*/")[0], number)
        for name, (row, scores) in target.scores(part).items():
            found[(first, row, number), name] = scores[..., None] if whole else scores
    return found, measured(result), unchanged[0]


def _corrupt_run(rest: StaticPart, arrays: list[Any]) -> Any:
    f, _, corrupt, _ = rest.whole(arrays)
    return f(*corrupt)


def _groups(targets: Sequence[Target], wanted: float) -> list[list[Target]]:
    """The targets in order, in about `wanted` groups of about the same number of points.

    With n groups, running takes 1/2 + 1/(2n) of the time of one group, and compiling takes n times as long. Over two
    runs, the sum is smallest if n is the root of the running time over the compiling time.
    """
    share = sum(target.points for target in targets) / min(max(round(wanted), 1), _MOST_GROUPS)
    groups: list[list[Target]] = [[]]
    points = 0
    for target in targets:
        if points >= share and groups[-1]:
            groups.append([])
            points = 0
        groups[-1].append(target)
        points += target.points
    return groups


def _mapped(run: Callable[[Any], Any], total: int, most: int | None) -> Any:
    """`run` for every number below `total`, at most `most` at a time."""
    n = 1 if most is None else -(-total // most)
    if n == 1:
        return jax.vmap(run)(jnp.arange(total))
    size = -(-total // n)
    numbers = jnp.minimum(jnp.arange(n * size), total - 1).reshape(n, size)  # the last round may do some twice
    return jax.lax.map(jax.vmap(run), numbers).reshape(-1)[:total]
