"""Operations that build masks and constants, on a mesh with explicit axes: the numbers without a mesh, sharded."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from sonde import ops

KEY = jax.random.key(0)
X = np.asarray(jax.random.normal(KEY, (4, 6, 2, 8)))
CAUSAL = np.tril(np.ones((1, 1, 6, 6), bool))
TABLE = np.arange(21.0, dtype=np.float32).reshape(7, 3)
IDS = np.arange(8).reshape(4, 2) % 7


def decode(x):
    cache = jnp.zeros((4, 6, 2, 8))
    return ops.decode_step(
        x[:, :1], x[:, :1], x[:, :1], cached_key=cache, cached_value=cache, index=jnp.int32(2), mask=None
    )


PROGRAMS = {
    "dropout": lambda x: ops.dropout(x, KEY, rate=0.5),
    "dropout along axes": lambda x: ops.dropout(x, KEY, rate=0.5, broadcast_dims=(0, 2)),
    "attention": lambda x: ops.dot_product_attention(x, x, x, mask=CAUSAL, deterministic=True),
    "attention, one mask each": lambda x: ops.dot_product_attention(
        x, x, x, mask=np.repeat(CAUSAL, 4, axis=0), deterministic=True
    ),
    "causal attention with dropout": lambda x: ops.dot_product_attention(
        x, x, x, is_causal=True, dropout_rng=KEY, dropout_rate=0.3, broadcast_dropout=False
    ),
    "fused attention": lambda x: ops.fused_attention(x, x, x, mask=CAUSAL),
    "fused causal attention": lambda x: ops.fused_attention(x, x, x, is_causal=True),
    "decoding": decode,
    "causal mask": lambda x: ops.make_causal_mask(x.sum((2, 3))),
}


def on_mesh(f, *args):
    """The result of a function of arrays sharded over a mesh with an explicit axis, and of its jitted form."""
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        args = [jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec))) for x, spec in args]
        return f(*args), jax.jit(f)(*args)


@pytest.mark.every(4)  # half of the programs, on one of the two axes
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("spec", [("data",), (None, None, "data")])
def test_the_numbers_are_those_without_a_mesh(name, spec):
    expected = PROGRAMS[name](jnp.asarray(X))
    for result in on_mesh(PROGRAMS[name], (X, spec)):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), result, expected)


@pytest.mark.parametrize("ids", [("data",), ()])
@pytest.mark.parametrize("table", [(None, "data"), ("data",), ()])
def test_looking_up_rows(ids, table):
    rows, indices = TABLE[:6, :2], IDS % 6
    if ids and table == (None, "data"):
        with pytest.raises(Exception, match="out_sharding"):
            on_mesh(ops.embed, (indices, ids), (rows, table))
        return
    for result in on_mesh(ops.embed, (indices, ids), (rows, table)):
        np.testing.assert_array_equal(result, rows[indices])
