"""Norms of the gradients of examples, against gradients taken one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.tools.models import HIDDEN, LinenNetwork, Network, V, W, X, plain

from sonde import nnx
from sonde.tools import example_grad_norms


def losses():
    return {
        "plain": (lambda p, x: plain(x[None], *p)[0], (W, V)),
        "plain-jit": (jax.jit(lambda p, x: plain(x[None], *p)[0]), (W, V)),
        "nnx": (lambda model, x: model(x[None])[0], Network()),
        "nnx-jit": (lambda model, x: nnx.jit(lambda m, x: m(x))(model, x[None])[0], Network()),
        "linen": (lambda p, x: LinenNetwork().apply(p, x[None])[0], {"params": {"w": W, "v": V}}),
    }


@pytest.mark.parametrize("chunk", [1, 2])
@pytest.mark.parametrize("face", list(losses()))
def test_every_face(face, chunk):
    loss, params = losses()[face]
    # The gradient of v is the hidden row; that of w the outer product of the input and the v of the units that fire.
    fires = jnp.where(HIDDEN > 0, V, 0)
    expected = jnp.sqrt((HIDDEN**2).sum(1) + (X**2).sum(1) * (fires**2).sum(1))
    np.testing.assert_allclose(example_grad_norms(loss, chunk=chunk)(params, X), expected, rtol=1e-6)


def test_batches_are_pytrees_and_integers_are_left_alone():
    def loss(p, example):
        return p["w"] @ example["x"] * example["y"] + p["n"]

    batch = {"x": X, "y": jnp.array([2, 3])}
    found = example_grad_norms(loss)({"w": jnp.zeros(2), "n": jnp.int32(3), "name": "m"}, batch)
    np.testing.assert_allclose(found, [2 * np.sqrt(5), 9.0], rtol=1e-6)


def test_no_gradient_per_example_is_kept():
    params = {"w": jnp.ones((64, 64)), "v": jnp.ones(64)}
    batch = jnp.ones((128, 64))
    loss = lambda p, x: jnp.tanh(x @ p["w"]) @ p["v"]

    def all_at_once(params, batch):
        grads = jax.vmap(jax.grad(loss), (None, 0))(params, batch)
        return jnp.sqrt(sum(jnp.sum(g**2, range(1, g.ndim)) for g in jax.tree.leaves(grads)))

    def temporary(f):
        return jax.jit(f).lower(params, batch).compile().memory_analysis().temp_size_in_bytes

    one = sum(x.nbytes for x in params.values())
    assert temporary(all_at_once) >= 128 * one
    assert temporary(example_grad_norms(loss)) < 3 * one
    assert temporary(example_grad_norms(loss, chunk=4)) < 3 * 4 * one


def test_errors():
    with pytest.raises(ValueError, match=r"the loss of one example must be a number, got an array of shape \(2,\)"):
        example_grad_norms(lambda w, x: x * w)(1.0 * jnp.ones(()), X)
    with pytest.raises(ValueError, match=r"must have examples along the first axis, got first axes of \[2, 3\]"):
        example_grad_norms(lambda w, x: w)(jnp.ones(()), (X, jnp.ones(3)))
    with pytest.raises(ValueError, match="chunk must be at least 1, got 0"):
        example_grad_norms(lambda w, x: w, chunk=0)
