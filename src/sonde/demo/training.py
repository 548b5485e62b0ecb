"""Training until one induction head has formed.

Without further constraints, the heads of the second layer share the work, and patching a single one restores little. So
the loss has a price on using a head at all, which grows once the task is learned and hardly depends on how large the
head's output is. Which head survives depends on the seed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from sonde import nnx
from sonde.demo.model import AttentionOnly
from sonde.demo.sequences import LENGTH, TOKENS, repeated

BATCH, RATE = 32, 1e-2
STEPS_A_CALL, FEWEST_STEPS, MOST_STEPS = 50, 450, 1500
FREE, RISING, FULL_PRICE = 150, 300, 0.5
QUIET = 1.0  # the output size of a head that pays half the price
LEARNED = 0.1  # the loss, in nats, below which the repeats count as learned


@dataclasses.dataclass(frozen=True)
class Trained:
    """A trained model.

    Attributes:
        model: The model.
        losses: The loss of every step: the mean surprise at tokens that could be known, in nats.
        learned: Whether the loss is low with the full price on heads; otherwise training was given up.
    """

    model: AttentionOnly
    losses: np.ndarray
    learned: bool


def surprise(model: AttentionOnly, tokens: jax.Array, period: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The mean loss at the tokens that can be known, and what the heads wrote."""
    logits, written = model(tokens)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:])
    is_known = jnp.arange(LENGTH - 1) >= period
    return jnp.sum(losses * is_known) / jnp.sum(is_known), written


def price_of_heads(written: jax.Array) -> jax.Array:
    """About the number of heads in use: a head with a large output costs nearly 1, a silent one nothing."""
    loudness = jnp.sqrt(jnp.mean(jnp.sum(written**2, axis=-1), axis=(1, 3)) + 1e-8)
    return jnp.sum(loudness / (loudness + QUIET))


def train(seed: int, on_progress: Callable[[int, float], None] = lambda step, loss: None) -> Trained:
    """Trains a model from a seed; the same seed gives the same model.

    Args:
        seed: Decides the initial weights and the data.
        on_progress: Called every few steps with the number of steps so far and the loss.
    """
    model = AttentionOnly(TOKENS, LENGTH, rngs=nnx.Rngs(seed))
    optimizer = nnx.Optimizer(model, optax.adam(RATE), wrt=nnx.Param)
    data = jax.random.key(seed + 1)
    structure, state = nnx.split((model, optimizer))

    def loss(model: AttentionOnly, step: jax.Array) -> tuple[jax.Array, jax.Array]:
        value, written = surprise(model, *repeated(jax.random.fold_in(data, step), BATCH))
        price = FULL_PRICE * jnp.clip((step - FREE) / RISING, 0, 1)
        return value + price * price_of_heads(written), value

    @jax.jit
    def some_steps(state: nnx.State, start: jax.Array) -> tuple[nnx.State, jax.Array]:
        def one(state: nnx.State, step: jax.Array) -> tuple[nnx.State, jax.Array]:
            model, optimizer = nnx.merge(structure, state)
            grads, value = nnx.grad(loss, has_aux=True)(model, step)
            optimizer.update(model, grads)
            return nnx.state((model, optimizer)), value

        return jax.lax.scan(one, state, start + jnp.arange(STEPS_A_CALL))

    losses: list[np.ndarray] = []
    learned = False
    while not learned and len(losses) * STEPS_A_CALL < MOST_STEPS:
        state, losses_of_call = some_steps(state, jnp.asarray(len(losses) * STEPS_A_CALL))
        losses.append(np.asarray(losses_of_call))
        steps_done = len(losses) * STEPS_A_CALL
        on_progress(steps_done, float(losses[-1][-1]))
        learned = steps_done >= FEWEST_STEPS and float(losses[-1].mean()) < LEARNED
    return Trained(nnx.merge(structure, state)[0], np.concatenate(losses), learned)
