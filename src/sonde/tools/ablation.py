"""Taking values away: `ablate` is an edit with a name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp

from sonde.core.capture import check_callable
from sonde.core.edit import edit
from sonde.core.path import Pattern


def ablate(
    f: Callable,
    *patterns: Pattern,
    to: float | Literal["mean"] = 0.0,
    units: int | Sequence[int] | None = None,
    axis: int = -1,
) -> Callable:
    """`f` without what is at some sites.

    Args:
        f: Any callable.
        *patterns: Which sites, as in `sonde.capture`; at least one.
        to: What stands in its place: a number, or `"mean"`, the mean over all axes but `axis`, so that what does not
            depend on the input stays. Under `vmap` a value is one example.
        units: Which indices along `axis` to take away. All, if None.
        axis: Where the units are: the last axis, unless given.

    Returns:
        A function with the arguments and results of `f`.

    Raises:
        ValueError: No pattern is given; or, when called, there is no such axis or unit.
        NoSuchSiteError: When called: a pattern matches no site.

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
        raise ValueError(f"ablate: to= is a number or 'mean', got {to!r}")
    chosen = None if units is None else (units,) if isinstance(units, int) else tuple(units)

    def without(x: Any) -> Any:
        if not hasattr(x, "dtype") or not jnp.issubdtype(x.dtype, jnp.number):
            return x
        at = _checked_axis(x, axis, chosen)
        if to == "mean":
            others = tuple(d for d in range(x.ndim) if d != at)
            new = jnp.broadcast_to(jnp.mean(x, others, keepdims=True).astype(x.dtype), x.shape)
        else:
            new = jnp.full_like(x, to)
        if chosen is None:
            return new
        is_unit = jnp.isin(jnp.arange(x.shape[at]), jnp.asarray([u % x.shape[at] for u in chosen]))
        return jnp.where(is_unit.reshape([-1 if d == at else 1 for d in range(x.ndim)]), new, x)

    def rule(value: Any) -> Any:
        return jax.tree.map(without, value)

    return edit(f, dict.fromkeys(patterns, rule))


def _checked_axis(x: Any, axis: int, units: tuple[int, ...] | None) -> int | None:
    if units is None and not x.ndim:
        return None
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"ablate: a value of shape {list(x.shape)} has no axis {axis}")
    for unit in units or ():
        if not -x.shape[axis] <= unit < x.shape[axis]:
            raise ValueError(f"ablate: a value of shape {list(x.shape)} has no unit {unit} along axis {axis}")
    return axis % x.ndim
