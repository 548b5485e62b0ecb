"""Functions of Modules with their own backward pass."""

import jax.numpy as jnp
import pytest

from sonde import nnx


def test_custom_vjp_errors():
    with pytest.raises(AttributeError, match="No VJP defined for custom_vjp function f using defvjp"):

        @nnx.custom_vjp
        def f(x):
            return x

        f(1.0)
    f.defvjp(lambda x: (f(x), None), lambda r, g: (g, g))
    with pytest.raises(TypeError, match="a tuple of 1 cotangents, one for each differentiable argument, got 2 values"):
        nnx.grad(f)(1.0)
    with pytest.raises(ValueError, match="`nondiff_argnums` cannot contain `DiffState` objects"):
        nnx.custom_vjp(f, nondiff_argnums=(nnx.DiffState(0, nnx.Param),), graph_updates=False)


def test_custom_vjp_with_a_function_among_the_arguments():
    f = nnx.custom_vjp(lambda act, x: act(x), nondiff_argnums=(0,))
    f.defvjp(lambda act, x: (act(x), x), lambda act, x, g: (g[1] * 7 * act(x),))
    assert float(nnx.jit(lambda x: nnx.grad(f, argnums=1)(jnp.square, x))(2.0)) == 28.0
