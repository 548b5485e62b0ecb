"""The task of the demo: random sequences that repeat.

Tokens inside one period are distinct, so that what follows a token that was there before is certain. The period
differs from sequence to sequence: a head that always attends a fixed number of positions back does not help, and the
model has to find the earlier position by its token. That is induction.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

TOKENS, LENGTH = 26, 32
HALF = LENGTH // 2


def repeated(key: jax.Array, n: int) -> tuple[jax.Array, jax.Array]:
    """`n` sequences, each with its own period between a quarter and a half of its length; and their periods."""
    of_tokens, of_periods = jax.random.split(key)
    period = jax.random.randint(of_periods, (n, 1), LENGTH // 4, HALF + 1)
    return jnp.take_along_axis(_distinct(of_tokens, n), jnp.arange(LENGTH) % period, axis=1), period


def clean_and_corrupt(key: jax.Array, n: int) -> tuple[jax.Array, jax.Array]:
    """`n` sequences that repeat at the half, and the same with another first half: nothing in it can be continued.

    No position of the corrupt first half has the token of the clean one. The second halves are equal, so what the model
    should say is equal too; only in the clean sequences can it know.
    """
    halves, shift = jax.random.split(key)
    half = _distinct(halves, n)[:, :HALF]
    other_half = (half + jax.random.randint(shift, (n, 1), 1, TOKENS)) % TOKENS
    return jnp.concatenate([half, half], axis=1), jnp.concatenate([other_half, half], axis=1)


def _distinct(key: jax.Array, n: int) -> jax.Array:
    """`n` rows with all tokens, each row in another order."""
    return jnp.argsort(jax.random.uniform(key, (n, TOKENS)), axis=1)
