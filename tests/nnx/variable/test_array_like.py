"""A Variable where an array is expected: the same as Flax's, operator by operator."""

import jax.numpy as jnp
import numpy as np
import pytest

from sonde import nnx

OPERATIONS = {
    "add": lambda v: (v + 1, 1 + v, v + v, v + np.ones(3), np.ones(3) + v),
    "sub": lambda v: (v - 1, 1 - v),
    "mul": lambda v: (v * 2, 2 * v),
    "div": lambda v: (v / 2, 2 / (v + 1), v // 2, 7 // (v + 1), v % 2, 7 % (v + 1)),
    "pow": lambda v: (v**2, 2**v),
    "matmul": lambda v: (v @ v, v @ jnp.ones((3, 2)), jnp.ones((2, 3)) @ v),
    "unary": lambda v: (-v, +v, abs(v)),
    "compare": lambda v: (v == 1, v == v),
    "index": lambda v: (v[0], v[...], v[1:], v[-1]),
    "attributes": lambda v: (v.shape, v.ndim, v.size, str(v.dtype), v.T, v.sum(), v.at[0].set(5)),
    "jnp": lambda v: (jnp.sum(v), jnp.asarray(v), jnp.dot(v, v), np.asarray(v)),
    "iterate": lambda v: (list(v), len(v), 1.0 in v, bool(v)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_behaves_like_its_array(same, name):
    same(lambda nnx: OPERATIONS[name](nnx.Param(jnp.arange(3.0))))


def test_integers_and_scalars(same):
    same(lambda nnx: (int(nnx.Param(3)), float(nnx.Param(3)), [0, 1, 2, 3][nnx.Param(3)]))
    same(lambda nnx: (~nnx.Param(1), nnx.Param(6) & 3))
    same(lambda nnx: (nnx.Param(1) | 2, 1 ^ nnx.Param(3), nnx.Param(1) << 2, 8 >> nnx.Param(1)))


def test_more_than_flax_offers():
    assert (nnx.Param(2) < 3) and (nnx.Param(2) >= 2)
    assert divmod(nnx.Param(7), 2) == (3, 1)
    assert complex(nnx.Param(1)) == 1 + 0j
    assert not nnx.Param(jnp.array(0))
    assert (nnx.Param(jnp.arange(2)) != 1).tolist() == [True, False]


def test_in_place_operators_are_refused():
    v = nnx.Param(jnp.ones(2))
    with pytest.raises(NotImplementedError, match=r"variable\[\.\.\.\] \+= x"):
        v += 1
