"""`nn.checkpoint`, which is `nn.remat`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from sonde.linen.transforms.lift import Body, Bridge, Lifting, Methods, lift
from sonde.linen.variables.filters import Filter


def checkpoint(
    target: Callable[..., Any],
    variables: Filter = True,
    rngs: Filter = True,
    concrete: bool = False,
    prevent_cse: bool = True,
    static_argnums: int | tuple[int, ...] = (),
    policy: Callable[..., bool] | None = None,
    methods: Methods = None,
) -> Any:
    """A module class or function whose intermediate values are computed again in the backward pass.

    Args:
        target: The module class, or a function whose first argument is a module.
        variables: The collections that the function sees.
        rngs: The random streams that the function sees.
        concrete: As in `jax.checkpoint`.
        prevent_cse: As in `jax.checkpoint`; False is faster inside `nn.scan`.
        static_argnums: As in `jax.checkpoint`; the module is argument 0.
        policy: As in `jax.checkpoint`.
        methods: For a class, the methods to transform.
    """
    options = remat_options(variables, rngs, concrete, prevent_cse, static_argnums, policy)
    return lift(target, run_checkpoint, label="checkpoint", methods=methods, options=options)


def remat_options(
    variables: Filter,
    rngs: Filter,
    concrete: bool,
    prevent_cse: bool,
    static_argnums: int | tuple[int, ...],
    policy: Callable[..., bool] | None,
) -> dict[str, Any]:
    """The options of `run_checkpoint`, checked."""
    if concrete:
        raise ValueError(
            "nn.remat(concrete=True) has no meaning in JAX any more; use static_argnums for what must not be traced"
        )
    return {
        "variables": variables,
        "rngs": rngs,
        "prevent_cse": prevent_cse,
        "static_argnums": (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums),
        "policy": policy,
    }


remat = checkpoint


def run_checkpoint(
    bridge: Bridge,
    body: Body,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    variables: Filter = True,
    rngs: Filter = True,
    prevent_cse: bool = True,
    static_argnums: tuple[int, ...] = (),
    policy: Callable[..., bool] | None = None,
) -> Any:
    """Runs a body under `jax.checkpoint`."""
    lifting = Lifting(bridge.scopes, "remat", variables=(variables,), changes=(variables,), rngs=(rngs,))
    rematerialized = jax.checkpoint(
        lambda variables, rngs, *args, **kwargs: lifting.call(body, variables, rngs, *args, **kwargs),
        prevent_cse=prevent_cse,
        static_argnums=tuple(i + 1 for i in static_argnums if i > 0),
        policy=policy,
    )
    output, changes = rematerialized(lifting.variables, lifting.rngs, *args, **kwargs)
    lifting.publish(changes)
    return output
