"""Values that leave a module by the side: `sow`, `perturb` and `capture_intermediates`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    from sonde.linen.module import Module


def append(values: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    """The default of `reduce_fn`: all values of a site in a tuple."""
    return (*values, value)


def empty() -> tuple[Any, ...]:
    """The default of `init_fn`."""
    return ()


def sow(
    module: Module,
    collection: str,
    name: str,
    value: Any,
    reduce_fn: Callable[[Any, Any], Any],
    init_fn: Callable[[], Any],
) -> bool:
    """See `Module.sow`."""
    scope = module.bound_scope("sow values")
    if not scope.is_mutable(collection):
        return False
    if scope.has(collection, name):
        values = scope.get(collection, name)
    else:
        scope.reserve(name, collection, what=f"sown {collection!r} value", owner=type(module).__name__)
        values = init_fn()
    scope.put(collection, name, reduce_fn(values, value))
    return True


def offer(module: Module, method: str, output: Any) -> Any:
    """Sows the output of a method if `capture_intermediates` wants it."""
    wanted = module.bound_scope("capture outputs").run.capture
    if (method == "__call__") if wanted is True else wanted(module, method):
        module.sow("intermediates", method, output)
    return output


def perturb(module: Module, name: str, value: Any, collection: str) -> Any:
    """See `Module.perturb`."""
    scope = module.bound_scope("perturb values")
    if not scope.has(collection, name):
        if not scope.is_mutable(collection):
            return value
        scope.reserve(name, collection, what="perturbation", owner=type(module).__name__)
        scope.put(collection, name, jax.tree.map(jnp.zeros_like, value))
    return jax.tree.map(jnp.add, value, scope.get(collection, name))
