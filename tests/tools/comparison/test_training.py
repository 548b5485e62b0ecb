"""Train steps side by side: the first step, and the part of the state, that differ by more than rounding."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sonde.tools import compare_training

RNG = np.random.default_rng(0)
STATE = {"w": jnp.asarray(RNG.normal(size=(3, 2)), jnp.float32), "b": jnp.zeros(2)}
BATCHES = [jnp.asarray(RNG.normal(size=(4, 3)), jnp.float32) for _ in range(4)]


def loss(state: Any, x: Any) -> Any:
    return jnp.mean((jnp.tanh(x @ state["w"] + state["b"]) - 1) ** 2)


def step(state: Any, x: Any) -> Any:
    value, gradient = jax.value_and_grad(loss)(state, x)
    return jax.tree.map(lambda p, g: p - 0.1 * g, state, gradient), value


def rewritten(state: Any, x: Any, wrong_at: Any = None) -> Any:
    """The same step, with the mean taken over examples one by one."""
    gradients = jax.vmap(jax.grad(lambda s, row: loss(s, row[None])), (None, 0))(state, x)
    gradient = jax.tree.map(lambda g: g.mean(0), gradients)
    if wrong_at is not None:
        gradient["b"] = jnp.where(jnp.all(x == wrong_at), 1.01, 1.0) * gradient["b"]
    return {name: state[name] - gradient[name] / 10 for name in state}, loss(state, x)


def test_the_same_steps() -> None:
    found = compare_training(step, jax.jit(rewritten))(STATE, BATCHES)
    assert found.first is None
    assert [d.path for d in found.drifts if d.part == "b"] == [f"step_{i}/state" for i in range(4)]


def test_the_step_and_the_parameter_that_differ_are_named() -> None:
    found = compare_training(step, lambda s, x: rewritten(s, x, BATCHES[2]))(STATE, BATCHES)
    assert found.first is not None
    assert (found.first.path, found.first.part) == ("step_2/state", "b")


def test_nothing_to_train_on_is_an_error() -> None:
    with pytest.raises(ValueError, match="needs at least one batch"):
        compare_training(step, step)(STATE, [])
