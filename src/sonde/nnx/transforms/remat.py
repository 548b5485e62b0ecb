"""`nnx.remat`: intermediate values are computed again in the backward pass instead of kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from sonde.nnx.transforms.lifting import take
from sonde.nnx.transforms.options import MISSING, also_decorator, named_like
from sonde.nnx.transforms.prefixes import prepare


@also_decorator
def remat(
    f: Callable[..., Any] = MISSING,
    *,
    prevent_cse: bool = True,
    static_argnums: int | tuple[int, ...] = (),
    policy: Callable[..., bool] | None = None,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """`jax.checkpoint` for functions of Modules and Variables.

    Args:
        f: The function; leave it out to use `remat` as a decorator with options.
        prevent_cse: See `jax.checkpoint`.
        static_argnums: Positions of arguments that are not traced.
        policy: Which intermediate values to keep, see `jax.checkpoint_policies`.
        graph: True allows shared references, False demands trees. None: the current mode.
        graph_updates: Whether the function may change the structure of its arguments. None: the current setting.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> @nnx.remat
        ... def layer(w, x):
        ...     return jnp.tanh(w * x)
        >>> w = nnx.Param(jnp.array(0.0))
        >>> float(nnx.grad(lambda w: layer(w, 3.0))(w))
        3.0
    """
    run_mode = prepare("remat", f, graph, graph_updates)

    @named_like(f)
    def rematerialized(*args: Any, **kwargs: Any) -> Any:
        taken = take("remat", run_mode, args, kwargs, static=static_argnums)
        run = jax.checkpoint(taken.pure(f), prevent_cse=prevent_cse, policy=policy)
        return taken.settle(run(taken.values))

    return rematerialized


checkpoint = remat
