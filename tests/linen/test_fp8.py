"""Products in 8-bit floats, against Flax."""

import flax.linen as flax_nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.linen import fp8_ops as theirs
from tests.same_programs import outcomes_that_differ

from sonde import linen as nn
from sonde.flax.training import TrainState
from sonde.linen import fp8_ops as ours

E4M3, E5M2 = jnp.float8_e4m3fn, jnp.float8_e5m2
KEY = jax.random.key(0)


def equal(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(np.asarray(x, np.float32), np.asarray(y, np.float32), rtol=1e-6, atol=1e-7)


@pytest.mark.every(5)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("history", [[0.0, 0.0, 0.0], [0.3, 5.0, 1.0], [float("inf"), 1.0, 2.0]])
def test_functions(dtype, history):
    x = (100 * jax.random.normal(KEY, (4, 3))).astype(dtype)
    scale, history = jnp.array([0.5]), jnp.array(history)

    def each(ops):
        return {
            "quantize": ops.quantize(x, E4M3, scale, jnp.float32),
            "qdq": ops.qdq(x, E5M2, scale, jnp.dtype(dtype)),
            "scale": ops.compute_scale(history[0], scale, 448.0, margin=1),
            "updated": ops.update_fp8_meta(x, E4M3, scale, history),
            "rounded": ops.quantize_dequantize_update(x, E4M3, scale, history, jnp.float32),
            "in_q": ops.in_q(jnp.float32, E4M3, x, scale, history),
            "in_qdq": jax.vjp(lambda *a: ops.in_qdq(jnp.float32, E4M3, *a), x, scale, history)[1](x),
            "out_qdq": jax.vjp(lambda *a: ops.out_qdq(jnp.float32, E5M2, *a), x, scale, history)[1](x),
            "out_dq": ops.out_dq(jnp.float32, scale, scale, x),
        }

    if (found := outcomes_that_differ(lambda: each(ours), lambda: each(theirs))) is not None:
        equal(*found)


@pytest.mark.every(3)
@pytest.mark.parametrize("name", ["Fp8DotGeneral", "Fp8DotGeneralOp", "NANOOFp8DotGeneralOp"])
@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_layers_train_as_in_flax(name, dtype):
    """In bfloat16 op by op, where both do the same arithmetic, bit for bit.

    Compiled as a whole, two programs may round at different points. Rounded to 8 bits after that, a last digit of
    bfloat16 becomes an eighth of the value, and no bound would tell it from a mistake.
    """
    x = jax.random.normal(KEY, (2, 5, 8))

    def train(linen):
        class Model(linen.Module):
            @linen.compact
            def __call__(self, x):
                x = linen.DenseGeneral(6, axis=(-1,), dtype=dtype, dot_general_cls=getattr(linen, name))(x)
                return linen.Dense(3, dtype=dtype, dot_general_cls=getattr(linen, name))(linen.relu(x))

        model = Model()
        state = TrainState.create(apply_fn=model.apply, params=model.init(KEY, x), tx=optax.sgd(0.1))

        def step(state):
            loss, grads = jax.value_and_grad(lambda v: (state.apply_fn(v, x).astype(jnp.float32) ** 2).sum())(
                state.params
            )
            return state.apply_gradients(grads=grads), loss

        losses, run = [], jax.jit(step) if dtype is None else step
        for _ in range(3):
            state, loss = run(state)
            losses.append(loss)
        return losses, state.params

    if (found := outcomes_that_differ(lambda: train(nn), lambda: train(flax_nn))) is None:
        return
    mine, flax = found
    for a, b in zip(jax.tree.leaves(mine), jax.tree.leaves(flax), strict=True):
        np.testing.assert_allclose(a, b, rtol=0 if dtype else 1e-5, atol=0 if dtype else 1e-6)
    assert jax.tree.structure(mine) == jax.tree.structure(flax)


@pytest.mark.every(3)
@pytest.mark.parametrize("equation", ["mk,kn->mn", "mk,kn->nm", "bmk,bkn->bmn", "bmk,kbn->mbn"])
def test_einsum(equation):
    sizes = {"b": 2, "m": 3, "k": 4, "n": 5}
    left, right = (
        jax.random.normal(jax.random.fold_in(KEY, i), [sizes[c] for c in part])
        for i, part in enumerate(equation.split("->")[0].split(","))
    )

    def run(linen):
        module = linen.Fp8Einsum(amax_history_length=3)
        out, variables = module.init_with_output(KEY, equation, left, right)
        for _ in range(2):  # the second step has scales that are not one
            grads = jax.grad(lambda *a: (module.apply(a[0], equation, *a[1:]) ** 2).sum(), (0, 1, 2))(
                variables, left, right
            )
            variables = grads[0]
        return out, grads

    if (found := outcomes_that_differ(lambda: run(nn), lambda: run(flax_nn))) is not None:
        equal(*found)


def test_gradients_of_what_is_used_twice_are_the_larger_one():
    def used_twice(scale, history):
        scale, history = (jax.lax.convert_element_type(a, ours.fp32_max_grad) for a in (scale, history))
        first = ours.in_qdq(jnp.float32, E4M3, 2.0, scale, history)
        return first + ours.in_qdq(jnp.float32, E4M3, 3.0, scale, history)

    scale, history = jax.jit(jax.grad(used_twice, (0, 1)))(jnp.float32(1), jnp.zeros(3))
    assert float(scale) == 1
    assert history.tolist() == [3, 0, 0]


def test_arrays_that_are_added_by_their_maximum_are_made_and_read_outside_of_jit():
    array = jnp.arange(3.0).astype(ours.fm32)
    assert (array.shape, str(array.dtype)) == ((3,), "fp8_meta32")
    assert jax.lax.convert_element_type(array, jnp.float32).tolist() == [0, 1, 2]
