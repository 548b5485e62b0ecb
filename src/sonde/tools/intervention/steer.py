"""`steer`: an edit that adds a direction to values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from sonde.core import Edit, Pattern, check_callable, edit, explains_arguments
from sonde.errors import EditError

P = ParamSpec("P")
R = TypeVar("R")


@explains_arguments
def steer(
    f: Callable[P, R],
    directions: Mapping[str, Any] | Mapping[Pattern, Any],
    *,
    scale: ArrayLike = 1.0,
    positions: int | Sequence[int] | None = None,
    position_axis: int = -2,
    iterations: Any = None,
    calls: int | Sequence[int] | None = None,
    inside: object = None,
) -> Callable[P, R]:
    """`f` with a direction added to the values at some sites.

    Args:
        f: Any callable.
        directions: For each pattern, what to add: an array that broadcasts to the value (a vector of the last axis
            is added at every position), or a pytree of such arrays like the value.
        scale: How far to push. May be traced, to differentiate or map over it.
        positions: The positions at which to add it. All, if None.
        position_axis: The axis of the positions; by default the last but one.
        iterations: The iterations of the surrounding loop in which to add it, as in `sonde.Edit`.
        calls: The calls of the site at which to add it, as in `sonde.Edit`.
        inside: Functions, modules or packages whose values become sites, as in `sonde.capture`.

    Returns:
        A function with the arguments and results of `f`.

    Raises:
        NoSuchSiteError: When called: a pattern matches no site.
        EditError: When called: a direction does not broadcast to the value.

    Example:
        >>> import jax.numpy as jnp, sonde
        >>> from sonde.tools import steer
        >>> def f(x):
        ...     return sonde.sow(x * 2, "h")
        >>> print(steer(f, {"h": jnp.array([1.0, -1.0])}, scale=3.0)(jnp.zeros((2, 2))))
        [[ 3. -3.]
         [ 3. -3.]]
    """
    check_callable(f, "steer")
    if not isinstance(directions, Mapping):
        raise TypeError(
            f"steer takes a mapping from patterns to directions, got {directions!r} of type {type(directions).__name__}"
        )

    def toward(pattern: Pattern, direction: ArrayLike) -> Callable[[Any], Any]:
        def pushed(x: jax.Array, d: jax.Array) -> Any:
            try:
                fits = jnp.broadcast_shapes(jnp.shape(x), jnp.shape(d)) == jnp.shape(x)
            except ValueError:
                fits = False
            if not fits:
                raise EditError(
                    f"steer at {pattern!r}: a direction of shape {list(jnp.shape(d))} does not broadcast to the value "
                    f"of shape {list(jnp.shape(x))}"
                )
            return x + (scale * jnp.asarray(d)).astype(x.dtype)

        return lambda value: jax.tree.map(pushed, value, direction)

    where: dict[str, Any] = {
        "positions": positions,
        "position_axis": position_axis,
        "iterations": iterations,
        "calls": calls,
    }
    return edit(f, {pattern: Edit(toward(pattern, d), **where) for pattern, d in directions.items()}, inside=inside)
