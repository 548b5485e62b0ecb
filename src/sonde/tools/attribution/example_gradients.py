"""The norm of the gradient of every example, without keeping any gradient.

Examples go through `jax.lax.map`, `chunk` at a time: a gradient is computed, its norm is kept, and the memory is used
again. At most `chunk` gradients exist at once, however large the batch is. A larger `chunk` is faster where one example
does not fill the machine.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from sonde.core import JitByStaticPart, StaticPart, check_callable, static_and_arrays, two_steps


@two_steps
def example_grad_norms(loss: Callable[[Any, Any], Any], *, chunk: int = 1) -> Callable[[Any, Any], jax.Array]:
    """A compiled function that returns the norm of the gradient of every example.

    Args:
        loss: A function of the parameters and one example that returns a number.
        chunk: How many examples, and so how many gradients, are in memory at a time.

    Returns:
        A function of the parameters and a batch: a pytree of arrays with examples along the first axis. The parameters
        may be any pytree, including a model; the norm is over all its floating-point arrays. A model is not changed.

    Raises:
        ValueError: `chunk` is less than 1; or, when called, arrays of the batch have different lengths, or the loss is
            not a number.

    Example:
        >>> import jax.numpy as jnp
        >>> from sonde.tools import example_grad_norms
        >>> def loss(w, example):
        ...     return jnp.dot(w, example)
        >>> print(example_grad_norms(loss)(jnp.zeros(2), jnp.array([[3.0, 4.0], [0.0, 1.0]])))
        [5. 1.]
    """
    check_callable(loss, "example_grad_norms")
    if chunk < 1:
        raise ValueError(f"example_grad_norms: chunk must be at least 1, got {chunk}")

    compiled = JitByStaticPart.shared(functools.partial(_norms, loss, chunk), loss)

    def of_batch(params: Any, batch: Any) -> jax.Array:
        lengths = {jnp.shape(x)[:1] for x in jax.tree.leaves(batch)}
        if len(lengths) != 1 or lengths == {()}:
            raise ValueError(
                "example_grad_norms: the arrays of the batch must have examples along the first axis, got first "
                f"axes of {[n[0] if n else None for n in sorted(lengths)]}"
            )
        rest, arrays = static_and_arrays(params)
        which = tuple(jnp.issubdtype(x.dtype, jnp.inexact) for x in arrays)
        floats = [x for x, w in zip(arrays, which) if w]
        return compiled((which, rest), floats, [x for x, w in zip(arrays, which) if not w], batch)

    return of_batch


def _norms(
    loss: Callable[[Any, Any], Any],
    chunk: int,
    parts: tuple[tuple[bool, ...], StaticPart],
    floats: list[Any],
    others: list[Any],
    batch: Any,
) -> jax.Array:
    which, rest = parts

    def number(floats: list[Any], example: Any) -> Any:
        a, b = iter(floats), iter(others)
        result = loss(rest.whole([next(a) if w else next(b) for w in which]), example)
        if jnp.shape(result) != ():
            raise ValueError(
                "example_grad_norms: the loss of one example must be a number, got an array of shape "
                f"{jnp.shape(result)}"
            )
        return result

    def norm(example: Any) -> jax.Array:
        squares = [jnp.sum(jnp.abs(g.astype(_wide(g))) ** 2) for g in jax.grad(number)(floats, example)]
        return jnp.sqrt(sum(squares, jnp.zeros(())))

    return jax.lax.map(norm, batch, batch_size=chunk if chunk > 1 else None)


def _wide(x: jax.Array) -> Any:
    return jnp.promote_types(x.dtype, jnp.float32)
