"""Taking values away: `ablate` is an edit with a name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp

from sonde.core.capture import check_callable
from sonde.core.edit import edit
from sonde.core.path import Pattern, glob_matches, no_such_site


def ablate(
    f: Callable,
    *patterns: Pattern,
    to: float | Literal["mean"] | Any | Mapping[str, Any] = 0.0,
    units: int | Sequence[int] | None = None,
    axis: int = -1,
    inside: Any = None,
) -> Callable:
    """`f` without what is at some sites.

    Args:
        f: Any callable.
        *patterns: Which sites, as in `sonde.capture`; at least one.
        to: What stands in its place: a number; an array that broadcasts against the value; `"mean"`, the mean of this
            value over all axes but `axis` (under `vmap` a value is one example); or means over a data set, as
            `sonde.store.statistics` returns them by path.
        units: Which indices along `axis` to take away. All, if None.
        axis: Where the units are: the last axis, unless given.
        inside: Code without sites to look into, as in `sonde.capture`.

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
        >>> print(ablate(f, "h", units=1)(jnp.arange(3.0)), ablate(f, "*", to=5.0)(jnp.arange(3.0)))
        [1. 1. 5.] [6. 6. 6.]
    """
    check_callable(f, "ablate")
    if not patterns:
        raise ValueError("ablate needs at least one pattern, such as 'blocks/3/attn': all sites at once are no model")
    if isinstance(to, str) and to != "mean":
        raise ValueError(f"ablate: to= is a number, an array, 'mean' or statistics by path, got {to!r}")
    chosen = None if units is None else (units,) if isinstance(units, int) else tuple(units)
    if isinstance(to, Mapping):
        return edit(f, {path: _rule(to[path].mean, chosen, axis) for path in _paths(to, patterns)}, inside=inside)
    return edit(f, dict.fromkeys(patterns, _rule(to, chosen, axis)), inside=inside)


def _paths(statistics: Mapping[str, Any], patterns: Sequence[Pattern]) -> list[str]:
    """The paths of the statistics that the patterns choose."""
    found = {}
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise TypeError("ablate: with statistics by path, a pattern is a glob")
        chosen = [path for path in statistics if glob_matches(pattern, path)]
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
            others = tuple(d for d in range(x.ndim) if d != at)
            new = jnp.broadcast_to(jnp.mean(x, others, keepdims=True).astype(x.dtype), x.shape)
        else:
            new = _broadcast(to, x)
        if units is None:
            return new
        is_unit = jnp.isin(jnp.arange(x.shape[at]), jnp.asarray([u % x.shape[at] for u in units]))
        return jnp.where(is_unit.reshape([-1 if d == at else 1 for d in range(x.ndim)]), new, x)

    return lambda value: jax.tree.map(without, value)


def _broadcast(to: Any, x: Any) -> Any:
    new = jnp.asarray(to, x.dtype)
    try:
        return jnp.broadcast_to(new, x.shape)
    except ValueError:
        raise ValueError(
            f"ablate: to= has shape {list(new.shape)}, which does not broadcast to a value of shape {list(x.shape)}"
        ) from None


def _checked_axis(x: Any, axis: int, units: tuple[int, ...] | None) -> int | None:
    if units is None and not x.ndim:
        return None
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"ablate: a value of shape {list(x.shape)} has no axis {axis}")
    for unit in units or ():
        if not -x.shape[axis] <= unit < x.shape[axis]:
            raise ValueError(f"ablate: a value of shape {list(x.shape)} has no unit {unit} along axis {axis}")
    return axis % x.ndim
