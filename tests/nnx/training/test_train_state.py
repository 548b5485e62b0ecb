"""A train state for functional code, as Flax's."""

from __future__ import annotations

import flax.nnx as fnnx
import jax
import jax.numpy as jnp
import optax
from tests.nnx.training.comparing import same

from sonde import nnx


def test_train_state_equals_flax():
    seen = []
    x = jnp.ones((2, 3))
    for where in (nnx, fnnx):
        graph, params = where.split(where.Linear(3, 4, rngs=where.Rngs(0)))

        class State(where.TrainState):
            extra: jax.Array

        train = State.create(graph, params=params, tx=optax.adam(0.1), extra=jnp.float32(2.0))

        @jax.jit
        def step(train):
            loss = lambda params: (train.apply(params)(x)[0] ** 2).sum() * train.extra
            return train.apply_gradients(jax.grad(loss)(train.params))

        for _ in range(3):
            train = step(train)
        assert train.step == 3
        seen.append((train.apply("params")(x)[0], jax.tree.leaves(train.opt_state), train.replace(step=7).step))
    same([seen[0][0], seen[0][1]], [seen[1][0], seen[1][1]], rtol=3e-6)
    assert seen[0][2] == 7


def test_train_states_and_optimizers_can_be_subscripted():
    model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    assert nnx.Optimizer[nnx.Linear](model, optax.sgd(0.1), wrt=nnx.Param).step == 0
    graphdef, params = nnx.split(model)
    assert nnx.TrainState[nnx.Linear].create(graphdef, params=params, tx=optax.sgd(0.1)).step == 0
