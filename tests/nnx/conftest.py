"""The oracle: a differential test runs one function with `flax.nnx` and with `sonde.nnx` and compares the results."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import jax
import numpy as np
import pytest

from flax import nnx as flax_nnx
from sonde import nnx as sonde_nnx

REQUIRED = ("hijax", "ref", "eager_sharding")


def plain(value, nnx):
    """A value of either implementation as data that can be compared."""
    if isinstance(value, nnx.Variable):
        metadata = {k: v for k, v in value.get_metadata().items() if k not in REQUIRED}
        return (type(value).__name__, plain(value.get_raw_value(), nnx), metadata)
    if isinstance(value, nnx.State):
        return ("State", {path: plain(leaf, nnx) for path, leaf in nnx.to_flat_state(value)})
    if isinstance(value, nnx.FlatState):
        return ("FlatState", [(path, plain(leaf, nnx)) for path, leaf in value])
    if isinstance(value, nnx.Pytree):
        return (type(value).__name__, plain(nnx.state(value), nnx))
    if isinstance(value, jax.Array):
        data = jax.random.key_data(value) if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key) else value
        return ("Array", str(value.dtype), np.asarray(data).tolist())
    if isinstance(value, np.ndarray):
        return ("ndarray", str(value.dtype), value.tolist())
    if isinstance(value, Mapping):
        return {k: plain(v, nnx) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(plain(v, nnx) for v in value)
    if isinstance(value, type):
        return value.__name__
    return value


def outcome(fn, nnx):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Flax deprecates what Sonde keeps
        try:
            return plain(fn(nnx), nnx)
        except Exception as error:
            return ("raised", type(error).__name__)


@pytest.fixture
def same():
    """Asserts that a function of `nnx` does the same with both implementations; returns what it does."""

    def check(fn):
        expected, got = outcome(fn, flax_nnx), outcome(fn, sonde_nnx)
        assert got == expected
        return got

    return check
