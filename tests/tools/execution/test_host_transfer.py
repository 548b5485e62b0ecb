"""Arrays on their way to the host."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sonde.tools.execution.host_transfer import Fetching
from sonde.tools.numerics.array_statistics import NAMES, described, moments

TREES = {
    "several dtypes": {
        "a": jnp.arange(6.0).reshape(2, 3),
        "b": [jnp.int32(3), jnp.array([True, False])],
        "c": jnp.ones(2),
    },
    "one array": jnp.arange(3),
    "nothing": {},
    "empty arrays": [jnp.zeros((0, 2)), jnp.ones(3)],
    "half precision": [jnp.ones(2, jnp.bfloat16), jnp.zeros((), jnp.bfloat16), jnp.ones(2)],
    "on the host already": [np.arange(3), jnp.arange(3)],
}


@pytest.mark.parametrize("name", TREES)
def test_everything_arrives(name):
    tree = TREES[name]
    arrived = Fetching.of(tree).arrived()
    assert jax.tree.structure(arrived) == jax.tree.structure(tree)
    for got, sent in zip(jax.tree.leaves(arrived), jax.tree.leaves(tree)):
        assert isinstance(got, np.ndarray) and got.dtype == sent.dtype
        np.testing.assert_array_equal(got, sent)


def test_few_copies():
    assert len(Fetching.of([jnp.full(2, i) for i in range(9)] + [jnp.float32(1)]).arrays) == 2


def test_arrays_on_different_devices():
    devices = jax.devices()[:2]
    sent = Fetching.of([jax.device_put(jnp.arange(3), d) for d in devices])
    assert sent.whole
    np.testing.assert_array_equal(sent.arrived(), [[0, 1, 2]] * 2)


ARRAYS = {
    "usual": np.linspace(-2, 3, 24, dtype=np.float32).reshape(2, 3, 4),
    "with NaN": np.array([1.0, np.nan, 3.0], np.float32),
    "with infinity": np.array([1.0, -np.inf, 3.0], np.float32),
    "huge": np.array([1e30, -3e30], np.float32),
    "tiny": np.array([1e-30, 3e-30], np.float32),
    "a tiny one": np.array([1e-30, 1.0], np.float32),
    "zeros": np.zeros((2, 3), np.float32),
    "nothing": np.zeros((0, 3), np.float32),
    "integers": np.array([[0, 1], [0, 2]], np.int32),
    "half precision": np.array([1.0, 2.0], jnp.bfloat16),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("mapped", [False, True])
def test_the_short_way_leads_to_the_same_statistics(name, mapped):
    x = jnp.stack([ARRAYS[name]] * 2) if mapped else jnp.asarray(ARRAYS[name])
    around = jax.vmap if mapped else lambda f: f
    ways = [jax.jit(around(lambda x, often=often: moments(x, NAMES, often=often)))(x) for often in (False, True)]
    one, other = (described(jax.device_get(way)) for way in ways)
    for field in ("size", "mean", "std", "min", "max", "norm", "zeros", "units", "dead", "nonfinite", "histogram"):
        np.testing.assert_allclose(getattr(one, field), getattr(other, field), rtol=1e-6, err_msg=field)
