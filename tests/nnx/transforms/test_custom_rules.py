"""Functions of Modules with their own backward pass."""

import jax.numpy as jnp
import pytest
from tests.nnx.transforms.against_flax import check, models

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
    with pytest.raises(ValueError, match="symbolic_zeros=True is not supported"):
        f.defvjp(lambda x: (f(x), None), lambda r, g: (g,), symbolic_zeros=True)
    f.defvjp(lambda x: x, lambda r, g: (g,))
    with pytest.raises(TypeError, match="the forward rule must return a pair of output and residuals"):
        nnx.grad(f)(1.0)


def test_custom_vjp_with_a_function_among_the_arguments():
    f = nnx.custom_vjp(lambda act, x: act(x), nondiff_argnums=(0,))
    f.defvjp(lambda act, x: (act(x), x), lambda act, x, g: (g[1] * 7 * act(x),))
    assert float(nnx.jit(lambda x: nnx.grad(f, argnums=1)(jnp.square, x))(2.0)) == 28.0


def _custom(n, k, *, changes=False, nondiff=()):
    counter, _ = models(n)

    @n.custom_vjp(nondiff_argnums=nondiff, **k)
    def f(m, x):
        if changes:
            m.count[...] += 1
        return m.w * x

    seen = []

    def bwd(*args):
        *_, (w, x), g = args
        seen.append(len(args))
        gm = counter(0.0)
        gm.w[...] = 10 * g * x
        gm.count[...] = 0.0 * x
        return (100 * g * w,) if nondiff else (gm, 100 * g * w)

    f.defvjp(lambda m, x: (f(m, x), (m.w[...], x)), bwd)
    m = counter(1.0)
    value = f(m, 2.0)
    if nondiff:
        grads = n.grad(lambda x, m: f(m, x), **k)(2.0, m)
    else:
        grads = n.grad(f, argnums=(0, 1), **k)(m, 2.0)
    return value, grads, m, seen


CUSTOM = {
    "plain": lambda n, k: _custom(n, k),
    "changes": lambda n, k: _custom(n, k, changes=True),
    "nondiff": lambda n, k: _custom(n, k, nondiff=(0,)),
    "nondiff changes": lambda n, k: _custom(n, k, changes=True, nondiff=(0,)),
}


@pytest.mark.parametrize("name", CUSTOM)
def test_custom_vjp_same_as_flax(name):
    check(CUSTOM[name])


def test_cotangents_of_updates_same_as_flax():
    def case(n, k):
        counter, _ = models(n)

        @n.custom_vjp(**k)
        def f(m):
            m.count[...] = m.w[...] * 3
            return m.w[...] * 2

        seen = []

        def bwd(m, g, *, updates_g):
            seen.append((updates_g[0].count[...], updates_g[0].w))
            gm = counter(0.0)
            gm.w[...] = g
            gm.count[...] = 0.0 * g
            return (gm,)

        f.defvjp(lambda m: (f(m), n.clone(m, graph=k["graph"])), bwd)
        m = counter(1.0)
        out = n.grad(lambda m: f(m) + 5 * m.count[...], **k)(m)
        return out, m, seen

    check(case)


class Scaled(nnx.Module):
    def __init__(self):
        self.w = nnx.Param(jnp.array(3.0))

    @nnx.custom_vjp
    def scale(self, x):
        return self.w * x


def test_a_method_with_its_own_rule():
    Scaled.scale.defvjp(lambda m, x: (m.w * x, x), lambda x, g: (None, g[1] * 10))
    model = Scaled()
    assert float(model.scale(2.0)) == 6.0
    of_model, of_x = nnx.grad(lambda m, x: m.scale(x), argnums=(0, 1))(model, 2.0)
    assert float(of_x) == 10.0
    assert float(of_model.w[...]) == 0.0  # None in place of a cotangent


def test_a_cotangent_of_another_form():
    f = nnx.custom_vjp(lambda x: x["a"] * 2)
    f.defvjp(lambda x: (x["a"] * 2, None), lambda _, g: ({"a": g[1], "b": g[1]},))
    with pytest.raises(TypeError, match="a cotangent with 2 leaves for .*, which has 1; b is not in it"):
        nnx.grad(f)({"a": 1.0})
