"""Functions whose derivative rule does not run the function: its sites are values all the same."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import sonde


def function(x: Any, y: Any) -> Any:
    return sonde.sow(jnp.sin(x) * y, "h") * 2


def custom_vjp(calls: bool) -> Callable:
    f = jax.custom_vjp(function)
    forward = function if calls else lambda x, y: jnp.sin(x) * y * 2
    f.defvjp(
        lambda x, y: (forward(x, y), (x, y)),
        lambda res, ct: (jnp.cos(res[0]) * res[1] * 2 * ct, jnp.sin(res[0]) * 2 * ct),
    )
    return f


def custom_jvp(calls: bool) -> Callable:
    f = jax.custom_jvp(function)
    forward = function if calls else lambda x, y: jnp.sin(x) * y * 2

    @f.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        (x, y), (dx, dy) = primals, tangents
        return forward(x, y), jnp.cos(x) * y * 2 * dx + jnp.sin(x) * 2 * dy

    return f


AROUND = {
    "nothing": lambda f: f,
    "jit": jax.jit,
    "scan": lambda f: lambda x, y: lax.scan(lambda c, _: (f(c, y) * 0.1, None), x, None, length=3)[0],
    "vmap": lambda f: lambda x, y: jnp.sum(jax.vmap(f, (0, None))(jnp.stack([x, x + 1]), y)),
    "remat": jax.checkpoint,
    "cond": lambda f: lambda x, y: lax.cond(x > 0, f, lambda x, y: x, x, y),
}


@pytest.mark.parametrize("calls", [False, True])
@pytest.mark.parametrize("make", [custom_vjp, custom_jvp])
@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
def test_values_inside_a_function_that_is_differentiated_outside_of_the_capture(
    make: Callable, calls: bool, around: Callable
) -> None:
    x, y = jnp.float32(0.3), jnp.float32(2)
    f = around(make(calls))
    expected = sonde.capture(f)(x, y)[1]["h"].value
    captured = jax.grad(sonde.capture(f), has_aux=True)
    for program in (captured, jax.jit(captured)):
        gradient, records = program(x, y)
        np.testing.assert_allclose(gradient, jax.grad(f)(x, y), rtol=1e-6)
        np.testing.assert_allclose(records["h"].value, expected, rtol=1e-6)
