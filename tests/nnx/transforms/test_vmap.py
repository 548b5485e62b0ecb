"""Functions that are mapped over axes of Variables."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sonde import nnx


def test_pmap_static_and_donated():
    m = nnx.Dict(w=nnx.Param(jnp.ones(2)))

    def f(m, s):
        m.w[...] += s
        return m.w * 1

    g = nnx.pmap(f, static_broadcasted_argnums=1, donate_argnums=0)
    np.testing.assert_array_equal(g(m, 2), [3, 3])
    before = m.w[...]
    np.testing.assert_array_equal(g(m, 3), [6, 6])
    np.testing.assert_array_equal(m.w[...], [6, 6])
    assert before.is_deleted()


def test_new_variables_are_mapped_like_their_argument():
    m = nnx.Dict(w=nnx.Param(jnp.arange(6.0).reshape(2, 3)), c=nnx.BatchStat(jnp.array(1.0)))

    def f(m):
        m.twice = nnx.Param(m.w * 2)
        m.mean = nnx.BatchStat(m.c * 3)

    nnx.vmap(f, in_axes=(nnx.StateAxes({nnx.Param: 1, ...: None}),))(m)
    np.testing.assert_array_equal(m.twice[...], m.w[...] * 2)
    assert float(m.mean) == 3.0


def test_vmap_of_a_cache_that_is_made_inside():
    class Block(nnx.Module):
        def __init__(self, rngs):
            self.attn = nnx.MultiHeadAttention(2, 4, decode=True, rngs=rngs)

    blocks = nnx.vmap(Block)(nnx.Rngs(0).fork(split=3))
    nnx.vmap(lambda b: b.attn.init_cache((1, 5, 4)))(blocks)
    assert blocks.attn.cached_key.shape == (3, 1, 5, 2, 2)


def test_a_constructor_under_vmap():
    class W(nnx.Module):
        @nnx.vmap
        def __init__(self, seed):
            self.k = nnx.Param(jax.random.uniform(jax.random.key(seed), (2,)))

    expected = jax.vmap(lambda s: jax.random.uniform(jax.random.key(s), (2,)))(jnp.arange(3))
    np.testing.assert_array_equal(W(jnp.arange(3)).k[...], expected)


def test_an_output_that_is_mapped_in_another_way_than_the_argument():
    m = nnx.Dict(w=nnx.Param(jnp.ones((2, 2))))
    with pytest.raises(ValueError, match="Inconsistent aliasing detected: nnx.vmap"):
        nnx.vmap(lambda m: m, out_axes=1)(m)


def test_a_value_without_an_axis_is_named():
    class Sows(nnx.Module):
        def __call__(self, x):
            self.sow(nnx.Intermediate, "h", x)
            return x

    class Holds(nnx.Module):
        def __init__(self):
            self.layers = nnx.List([Sows()])
            self.last = nnx.Variable(jnp.zeros(()))

    def both(scale, model, x):
        return model.layers[0](x) * scale

    def writes(model, x):
        model.last[...] = x

    xs = jnp.arange(3.0)
    with (
        pytest.warns(DeprecationWarning),
        pytest.raises(ValueError, match=r"nnx.vmap of 'both': the new value of args\[1\]/layers/0/h differs from"),
    ):
        nnx.vmap(both, in_axes=(None, None, 0))(2.0, Holds(), xs)
    with pytest.raises(ValueError, match=r"the new value of args\[0\]/last differs .*got axis spec None"):
        nnx.vmap(writes, in_axes=(None, 0))(Holds(), xs)
