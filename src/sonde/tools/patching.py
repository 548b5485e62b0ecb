"""Activation patching: which values, at which positions, carry what a metric measures?

Every point of the sweep is a run on the corrupt input in which one position of one site has its value of the run on
the clean input. Points are mapped over by their number, with which a site compares its own and selects, and all are in
one compiled call.

Sites that follow one another make a group, and groups are mapped over one by one: what comes before the first site of
a group is the same for all its points, and `vmap` computes it once. With as many groups as sites that saves half the
work. The price is a longer program, so there are only so many groups; and an accelerator wants many points at a time,
so there groups are large. A CPU wants few points at a time, which fit into its cache.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sonde.core.asking import asked_for
from sonde.core.capture import check_callable
from sonde.core.keeping import by_identity, kept_with
from sonde.core.path import Pattern, check_pattern
from sonde.errors import CaptureError
from sonde.tools.placing import Place, placed, values_to_place
from sonde.tools.pure import JitByRest, Rest, rest_and_arrays
from sonde.tools.reading import Seen, each_seen

_SHADES = " ░▒▓█"
_MOST_GROUPS = 12


class _Points(NamedTuple):
    """How many points a group has at least, and how many are run at a time at most."""

    least: int
    most: int | None


_AT_A_TIME = _Points(1, 64)


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Sweep:
    """What `patch_sweep` found.

    Attributes:
        scores: For every site, the metric with the clean value put there: an array with an axis per loop around the
            site and one for positions. Calls of a site after the first have their number in the name, as in `h[1]`.
        clean: The metric of the run on the clean input.
        corrupt: The metric of the run on the corrupt input.
    """

    scores: dict[str, jax.Array]
    clean: jax.Array
    corrupt: jax.Array

    @property
    def restored(self) -> dict[str, np.ndarray]:
        """The scores, as parts of what was lost: 0 is as bad as the corrupt run, 1 as good as the clean one.

        NaN if the metric is the same for both: nothing was lost.
        """
        lost = (float(self.clean) - float(self.corrupt)) or float("nan")
        return {name: (np.asarray(s, np.float64) - float(self.corrupt)) / lost for name, s in self.scores.items()}

    def best(self, n: int = 5) -> list[tuple[str, tuple[int, ...], float]]:
        """Where most is restored: name, index and restored part of the `n` best points."""
        points = [(name, index, float(x)) for name, r in self.restored.items() for index, x in np.ndenumerate(r)]
        return sorted(points, key=lambda point: -point[2])[:n]

    def __repr__(self) -> str:
        points = sum(np.size(s) for s in self.scores.values())
        return (
            f"Sweep({len(self.scores)} sites, {points} points, metric {float(self.corrupt):.6g} (corrupt) to "
            f"{float(self.clean):.6g} (clean))"
        )

    def __rich__(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        table = Table("site", "most", "at", "positions")
        table.title = f"restored of {float(self.corrupt):.4g} (corrupt) to {float(self.clean):.4g} (clean)"
        for name, restored in self.restored.items():
            at = np.unravel_index(np.argmax(restored), restored.shape)
            for row in restored.reshape(-1, restored.shape[-1]):
                shades = [_SHADES[round(float(np.clip(np.nan_to_num(x), 0, 1)) * (len(_SHADES) - 1))] for x in row]
                table.add_row(Text(name), f"{restored.max():.3f}", ",".join(map(str, at)), Text("".join(shades)))
                name = ""
        return table


def patch_sweep(
    f: Callable,
    clean: Any,
    corrupt: Any,
    sites: Pattern | Sequence[Pattern],
    metric: Callable[[Any], Any],
    axis: int | None = -2,
    *,
    chunk: int | None = None,
    inside: Any = None,
) -> Sweep:
    """Runs `f` on the corrupt input once for every position of every site, with the clean value put there.

    The sweep is one compiled call. It is compiled again for another function, metric or shape; the last few are
    remembered as long as `f` is, by the identity of `f` and `metric`, so define them once.

    Args:
        f: Any callable. Models are not changed by the runs.
        clean: The arguments of the clean run: a tuple, or the only argument.
        corrupt: The arguments of the corrupt run, with the same shapes.
        sites: Which sites: a pattern or several, as in `sonde.capture`.
        metric: A function of the result of `f` that returns a number.
        axis: The axis of the values along which positions are; a negative one counts from the end, another one without
            the axes that `vmap` puts in front. None patches whole values. In loops, every iteration is a point.
        chunk: How many points are run at a time, for less memory. If None, some on a CPU, elsewhere as many as there
            are.
        inside: Code without sites to look into, as in `sonde.capture`.

    Returns:
        A `Sweep`.

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
        >>> sweep = patch_sweep(f, jnp.ones((3, 4)), jnp.zeros((3, 4)), "h", jnp.sum)
        >>> print(sweep.restored["h"])
        [0. 1. 0.]
    """
    check_callable(f, "patch_sweep")
    check_callable(metric, "patch_sweep")
    several = (sites,) if isinstance(sites, str) or callable(sites) else tuple(sites)
    patterns = tuple(map(check_pattern, several))
    if not patterns:
        raise ValueError("patch_sweep needs sites: a pattern or several, such as 'blocks/*/attn'")
    if chunk is not None and chunk < 1:
        raise ValueError(f"patch_sweep: chunk must be at least 1, got {chunk}")
    runs = (f, *(x if isinstance(x, tuple) else (x,) for x in (clean, corrupt)))
    shapes = [[f"{x.dtype}{list(x.shape)}" for x in _arrays_in(inputs)] for inputs in runs[1:]]
    if shapes[0] != shapes[1]:
        raise ValueError(
            "patch_sweep puts values of the clean run into the corrupt one, so both inputs must have the same arrays; "
            f"the clean one has {', '.join(shapes[0])}, the corrupt one {', '.join(shapes[1])}"
        )
    rest, arrays = rest_and_arrays(runs)
    at_a_time = _AT_A_TIME if jax.default_backend() == "cpu" else _Points(256, None)
    if chunk is not None:
        at_a_time = _Points(at_a_time.least, chunk)
    asked = asked_for(inside)
    key = ("sweep", patterns, by_identity(metric), axis, at_a_time, asked)
    owner = next((g for g in (f, metric) if isinstance(g, types.FunctionType | jax.stages.Wrapped)), _sweep)
    sweep = kept_with(owner, key, lambda: _sweep(patterns, metric, axis, at_a_time, asked))
    found, of_clean, of_corrupt = sweep(rest, arrays)
    return Sweep({name: scores for (_, name), scores in sorted(found.items())}, of_clean, of_corrupt)


def _arrays_in(inputs: Any) -> list[Any]:
    return [x for x in jax.tree.leaves(inputs) if hasattr(x, "shape") and hasattr(x, "dtype")]


def _sweep(
    patterns: tuple[Pattern, ...], metric: Callable, axis: int | None, points: _Points, inside: Any = None
) -> JitByRest:
    """The compiled sweep."""

    def measured(result: Any) -> Any:
        score = metric(result)
        if jnp.shape(score) != ():
            raise ValueError(f"patch_sweep: the metric must be a number, got an array of shape {jnp.shape(score)}")
        return score

    def sweep(rest: Rest, arrays: list[Any]) -> Any:
        f, clean, corrupt = rest.whole(arrays)
        result, records = values_to_place(f, *patterns, inside=inside)(*clean)
        targets = [_Target.of(seen, axis) for seen in each_seen(records)]

        def run(group: Sequence[_Target], point: Any) -> Any:
            starts = np.cumsum([0, *[target.points for target in group]])
            places = {(t.seen.path, t.seen.call): (t, int(start)) for t, start in zip(group, starts)}

            def rule(values: list[Any], place: Place) -> list[Any]:
                target, start = places.get((place.path, place.call), (None, 0))
                return values if target is None else target.patched(values, place, point - start)

            # A copy for every run: what a run changes in a model must not be there in the next.
            f, _, corrupt = rest.whole(arrays)
            return measured(placed(f, rule, inside)(*corrupt))

        scores = []
        for group in _groups(targets, points.least):
            total = sum(target.points for target in group)
            scores.append(_mapped(functools.partial(run, group), total, points.most))
        parts = jnp.split(jnp.concatenate(scores), np.cumsum([target.points for target in targets])[:-1])
        f, _, corrupt = rest.whole(arrays)
        found = {}
        for number, (target, part) in enumerate(zip(targets, parts)):
            path, call = target.seen.path, target.seen.call
            found[number, f"{path}[{call}]" if call else path] = part.reshape(*target.loops, target.positions)
        return found, measured(result), measured(f(*corrupt))

    return JitByRest(sweep)


def _groups(targets: Sequence[_Target], least: int) -> list[list[_Target]]:
    """The targets in groups of about the same number of points, in order: not too many, and none too small."""
    total = sum(target.points for target in targets)
    share = max(least, total / _MOST_GROUPS)
    groups: list[list[_Target]] = [[]]
    points = 0
    for target in targets:
        if points >= share and groups[-1]:
            groups.append([])
            points = 0
        groups[-1].append(target)
        points += target.points
    return groups


def _mapped(run: Callable[[Any], Any], total: int, most: int | None) -> Any:
    """`run` of every number below `total`, at most so many at a time."""
    n = 1 if most is None else -(-total // most)
    if n == 1:
        return jax.vmap(run)(jnp.arange(total))
    size = -(-total // n)
    numbers = jnp.minimum(jnp.arange(n * size), total - 1).reshape(n, size)  # the last round may do some twice
    return jax.lax.map(jax.vmap(run), numbers).reshape(-1)[:total]


@dataclasses.dataclass(frozen=True)
class _Target:
    """The points of a site.

    Attributes:
        seen: Its clean value.
        loops: The lengths of the loops around it.
        positions: How many positions there are.
        axis: Along which axis.
    """

    seen: Seen
    loops: tuple[int, ...]
    positions: int
    axis: int | None

    @classmethod
    def of(cls, seen: Seen, axis: int | None) -> _Target:
        if seen.count is not None:
            raise CaptureError(
                f"patch_sweep cannot patch {seen.path!r} ({seen.site.source}): it is in a while_loop, of which only "
                "the last iteration is recorded; use a scan, or a fori_loop with known bounds"
            )
        mapped = len(seen.axes) - seen.loops
        lengths = set()
        arrays = [x for x in jax.tree.leaves(seen.value) if hasattr(x, "dtype")]
        for x in arrays:
            own = x.shape[seen.loops + mapped :]
            if axis is not None and not -len(own) <= axis < len(own):
                raise ValueError(
                    f"patch_sweep: {seen.path!r} ({seen.site.source}) has the shape {list(own)} and no axis {axis}; "
                    "axis=None patches whole values"
                )
            lengths.add(1 if axis is None else own[axis])
        if len(lengths) != 1:
            raise ValueError(
                f"patch_sweep: the arrays of {seen.path!r} ({seen.site.source}) must have one length along axis "
                f"{axis}, got {sorted(lengths)}"
            )
        return cls(seen, arrays[0].shape[: seen.loops], lengths.pop(), axis)

    @property
    def points(self) -> int:
        return int(np.prod(self.loops, dtype=np.int64)) * self.positions

    def patched(self, values: list[Any], place: Place, point: Any) -> list[Any]:
        """The values, with the clean one where the point says; nothing is changed if it is a point of another site."""
        first: Any = 0
        for length, step in zip(self.loops, place.iteration):
            first = first * length + step
        here = point == first * self.positions + jnp.arange(self.positions)
        if self.seen.taken is not None:  # what the clean run has not computed cannot be put anywhere
            taken = self.seen.taken
            for step in place.iteration[: jnp.ndim(taken)]:
                taken = jax.lax.dynamic_index_in_dim(taken, step, keepdims=False)
            here = here & jnp.any(taken)
        arrays = [x for x in jax.tree.leaves(self.seen.value) if hasattr(x, "dtype")]
        new = []
        for i, (old, whole) in enumerate(zip(values, arrays)):
            mask = here[0]
            if self.axis is not None:
                at = self.axis % (jnp.ndim(old) - place.mapped(i)) + place.mapped(i)
                mask = here.reshape([-1 if d == at else 1 for d in range(jnp.ndim(old))])
            new.append(jnp.where(mask, place.slice_of(whole, i), old))
        return new
