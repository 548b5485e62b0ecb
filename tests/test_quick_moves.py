"""What the tests do by NumPy is what JAX does: values, dtypes, weak types, and where the arrays are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests import quick_moves

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
MOVES = {
    "ones": lambda x: jnp.ones((3, 2)),
    "nothing": lambda x: jnp.zeros((0, 3), int),
    "flags": lambda x: jnp.ones(3, bool),
    "half": lambda x: jnp.full((2,), 1.5, jnp.bfloat16),
    "weak": lambda x: lax.broadcast(jnp.asarray(2.5), (3,)),
    "range": lambda x: jnp.arange(5),
    "iota": lambda x: lax.broadcasted_iota(jnp.float32, (2, 5, 3), 1),
    "broadcast": lambda x: lax.broadcast_in_dim(x[0], (3, 5, 4), (0, 2)),
    "reshape": lambda x: x.reshape(4, -1),
    "transpose": lambda x: x.transpose(2, 0, 1),
    "slices": lambda x: lax.slice(x, (0, 1, 0), (2, 3, 4), (1, 1, 2)),
    "squeeze": lambda x: lax.squeeze(x[:1], (0,)),
    "integers to floats": lambda x: jnp.asarray([2**24 + 1, -3]).astype(jnp.float32),
    "narrow integers": lambda x: jnp.asarray([300, -1]).astype(jnp.uint8),
    "floats to integers": lambda x: (x * -1e30).astype(jnp.int32),
    "put on a device": lambda x: jax.device_put(x, jax.devices()[1]).reshape(24),
    "in a transform": lambda x: jax.jit(lambda x: x.T.reshape(3, 8))(x),
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_the_same_arrays(move, monkeypatch):
    quick = move(jnp.asarray(X))
    monkeypatch.setattr(quick_moves, "_nothing_is_set", lambda: False)
    usual = move(jnp.asarray(X))
    for what in ("shape", "dtype", "weak_type", "committed", "sharding"):
        assert getattr(quick, what) == getattr(usual, what), what
    assert np.asarray(quick).tobytes() == np.asarray(usual).tobytes()
