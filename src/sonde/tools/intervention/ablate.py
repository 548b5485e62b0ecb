"""`ablate`: an edit that replaces values by zeros, means or other values."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from sonde._renames import accepts_old_keywords
from sonde.core import (
    Edit,
    Pattern,
    Record,
    check_callable,
    check_patterns,
    edit,
    explains_arguments,
    glob_matches,
    no_such_site,
)

P = ParamSpec("P")
R = TypeVar("R")


@accepts_old_keywords("sonde.tools.ablate")
@explains_arguments
def ablate(
    f: Callable[P, R],
    *patterns: Pattern,
    value: float | Literal["mean"] | Any | Mapping[str, Any] = 0.0,
    units: int | Sequence[int] | None = None,
    unit_axis: int = -1,
    resample: bool = False,
    seed: int = 0,
    positions: int | Sequence[int] | None = None,
    position_axis: int = -2,
    iterations: Any = None,
    calls: int | Sequence[int] | None = None,
    inside: object = None,
) -> Callable[P, R]:
    """`f` with the values at some sites replaced by zeros, means or other values.

    Args:
        f: Any callable.
        *patterns: Which sites, as in `sonde.capture`; at least one.
        value: What replaces a value: a number; an array that broadcasts against it; `"mean"`, the mean of this
            value over all axes but `unit_axis` and the last one (under `vmap` a value is one example), so that a
            head's mean is a vector; or, by path, the records of another run, arrays, or statistics over a data set as
            `sonde.store.statistics` returns them: their means, separate for each layer in a loop and for each call. For
            the means of single heads the statistics need the axis of the heads: `statistics(..., row_axes=2)`.
        units: Which indices along `unit_axis` to replace. All, if None.
        unit_axis: The axis of the units; by default the last.
        resample: Whether values are replaced by random samples that `statistics(..., samples=n)` kept, not by means.
            All sites draw the same samples, so that values of one example stay together.
        seed: For the choice of the samples.
        positions: The positions at which to replace. All, if None.
        position_axis: The axis of the positions; by default the last but one.
        iterations: The iterations of the surrounding loop in which to replace, as in `sonde.Edit`.
            Statistics that name an iteration apply to that one.
        calls: The calls of the site at which to replace, as in `sonde.Edit`. Statistics that name a call
            apply to that one.
        inside: Functions, modules or packages whose values become sites, as in `sonde.capture`.

    Returns:
        A function with the arguments and results of `f`.

    Raises:
        ValueError: No pattern is given; or, when called, there is no such axis or unit.
        NoSuchSiteError: A pattern matches none of the statistics; or, when called, no site.

    Example:
        >>> import jax.numpy as jnp, sonde
        >>> from sonde.tools import ablate
        >>> def f(x):
        ...     return sonde.sow(x * 2, "h") + 1
        >>> print(ablate(f, "h", units=1)(jnp.arange(3.0)), ablate(f, "*", value=5.0)(jnp.arange(3.0)))
        [1. 1. 5.] [6. 6. 6.]
    """
    check_callable(f, "ablate")
    patterns = check_patterns(patterns, "ablate")
    if not patterns:
        raise ValueError("ablate needs at least one pattern, such as 'blocks/3/attn'")
    if isinstance(value, str) and value != "mean":
        raise ValueError(f"ablate: value= is a number, an array, 'mean' or statistics by path, got {value!r}")
    chosen = None if units is None else (units,) if isinstance(units, int) else tuple(units)
    if isinstance(value, Mapping):
        edits: dict[Any, Edit] = {}
        for path in _paths(value, patterns):
            new, where = value[path], {"calls": calls, "iterations": iterations}
            site = path
            if not isinstance(new, Record) and not hasattr(new, "dtype"):
                site, own, at = _place(path)
                where = {"calls": calls if own is None else own, "iterations": iterations if at is None else at}
                new = _Drawn(path, new.samples, seed) if resample else _Mean(path, new.mean)
            elif resample:
                raise ValueError(_NO_SAMPLES)
            if isinstance(new, Record):
                rule = new if chosen is None else _rule(new.value, chosen, unit_axis)
            else:
                rule = _rule(new, chosen, unit_axis)
            # A separate pattern for every call and iteration of a site.
            edits[_Exactly(site)] = Edit(rule, **where, positions=positions, position_axis=position_axis)
        return edit(f, edits, inside=inside)
    if resample:
        raise ValueError(_NO_SAMPLES)
    new = _rule(value, chosen, unit_axis)
    rule = Edit(new, calls=calls, iterations=iterations, positions=positions, position_axis=position_axis)
    return edit(f, dict.fromkeys(patterns, rule), inside=inside)


_NO_SAMPLES = "ablate: resample= needs statistics of a data set, value=statistics(..., samples=n)"


class _Exactly:
    """A pattern for one path, unlike any other."""

    def __init__(self, path: str) -> None:
        self.path = self.__name__ = path

    def __call__(self, site: Any) -> bool:
        return site.path == self.path


_PLACE = re.compile(r"(?P<site>[^#\[\]]+)(#(?P<call>\d+))?(\[(?P<at>[\d,]+)\])?")


def _place(path: str) -> tuple[str, int | None, Any]:
    """The site, call and iteration that the path of an array of statistics stands for."""
    found = _PLACE.fullmatch(path)
    if found is None:
        raise ValueError(f"ablate: {path!r} is a part of a value; statistics can replace only values that are arrays")
    numbers = [int(i) for i in found["at"].split(",")] if found["at"] else []
    call = None if found["call"] is None else int(found["call"])
    if len(numbers) < 2:
        return found["site"], call, numbers[0] if numbers else None
    return found["site"], call, lambda *at: functools.reduce(jnp.logical_and, [a == n for a, n in zip(at, numbers)])


class _FromData:
    """Replaces values by numbers from statistics of a data set.

    Attributes:
        path: The path of the statistics.
        units: The shape of their units: the last axes of a value.
    """

    def __init__(self, path: str, units: tuple[int, ...]) -> None:
        self.path, self.units = path, units

    def check(self, x: jax.Array, axis: int) -> None:
        """Raises ValueError if the statistics do not tell the units along an axis of a value apart."""
        if x.ndim - axis > len(self.units):
            raise ValueError(
                f"ablate: units= are along axis {axis - x.ndim} of a value of shape {list(x.shape)}, but the "
                f"statistics of {self.path!r} are of units of shape {list(self.units)}, with that axis averaged; make "
                f"them with statistics(..., row_axes={axis})"
            )

    def like(self, x: jax.Array) -> Any:
        """An array for a value."""
        raise NotImplementedError


class _Mean(_FromData):
    """Means in place of values."""

    def __init__(self, path: str, mean: ArrayLike) -> None:
        super().__init__(path, jnp.shape(mean))
        self._mean = mean

    def like(self, x: jax.Array) -> Any:
        """The mean, broadcast to the shape of a value."""
        return _broadcast(self._mean, x)


class _Drawn(_FromData):
    """Samples in place of values."""

    def __init__(self, path: str, samples: jax.Array | np.ndarray | None, seed: int) -> None:
        if samples is None or not len(samples):
            raise ValueError(f"ablate: the statistics of {path!r} have no samples: make them with samples=n")
        super().__init__(path, samples.shape[1:])
        self._samples, self._seed = samples, seed

    def like(self, x: jax.Array) -> Any:
        """A sample for every position of a value."""
        units = self.units
        lead = x.shape[: x.ndim - len(units)]
        if x.shape[len(lead) :] != units:
            raise ValueError(f"ablate: samples of shape {list(units)} for a value of shape {list(x.shape)}")
        drawn = jax.random.randint(jax.random.key(self._seed), lead, 0, len(self._samples))
        return jnp.asarray(self._samples)[drawn].astype(x.dtype)


def _paths(statistics: Mapping[str, Any], patterns: Sequence[Pattern]) -> list[str]:
    """The paths of the statistics that the patterns choose."""
    found = {}
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise TypeError("ablate: with statistics by path, a pattern is a glob")
        chosen = [p for p in statistics if p == pattern or glob_matches(pattern, p.split("[")[0].split("#")[0])]
        if not chosen:
            raise no_such_site(pattern, statistics)
        found |= dict.fromkeys(chosen)
    return list(found)


def _rule(to: Any, units: tuple[int, ...] | None, axis: int) -> Callable[[Any], Any]:
    def without(x: Any) -> Any:
        if not hasattr(x, "dtype") or not jnp.issubdtype(x.dtype, jnp.number):
            return x
        at = _checked_axis(x, axis, units)
        if isinstance(to, str):
            others = tuple(d for d in range(x.ndim - 1) if d != at)
            new = jnp.broadcast_to(jnp.mean(x, others, keepdims=True).astype(x.dtype), x.shape)
        else:
            if isinstance(to, _FromData) and units is not None and at is not None:
                to.check(x, at)
            new = to.like(x) if isinstance(to, _FromData) else _broadcast(to, x)
        if units is None:
            return new
        is_unit = jnp.isin(jnp.arange(x.shape[at]), jnp.asarray([u % x.shape[at] for u in units]))
        return jnp.where(is_unit.reshape([-1 if d == at else 1 for d in range(x.ndim)]), new, x)

    return lambda value: jax.tree.map(without, value)


def _broadcast(to: Any, x: jax.Array) -> Any:
    new = jnp.asarray(to, x.dtype)
    try:
        return jnp.broadcast_to(new, x.shape)
    except ValueError:
        raise ValueError(
            f"ablate: value= has shape {list(new.shape)}, which does not broadcast to a value of shape {list(x.shape)}"
        ) from None


def _checked_axis(x: jax.Array, axis: int, units: tuple[int, ...] | None) -> int | None:
    if units is None and not x.ndim:
        return None
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"ablate: a value of shape {list(x.shape)} has no axis {axis}")
    for unit in units or ():
        if not -x.shape[axis] <= unit < x.shape[axis]:
            raise ValueError(f"ablate: a value of shape {list(x.shape)} has no unit {unit} along axis {axis}")
    return axis % x.ndim
