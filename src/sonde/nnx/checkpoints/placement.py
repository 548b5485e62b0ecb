"""Gives arrays from a checkpoint the devices, the dtype and the kind of the model's own arrays.

An array that is not committed to a device stays uncommitted, so that a restored model can still be mixed with arrays on
any device. A sharded array is read shard by shard if the format allows it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

from sonde.nnx.checkpoints.fitting import is_key


def sharding_of(wanted: object) -> Sharding | None:
    """The sharding an array must have; None for JAX's default, and for what is not an array of JAX."""
    if isinstance(wanted, jax.ShapeDtypeStruct):
        return wanted.sharding
    return wanted.sharding if isinstance(wanted, jax.Array) and wanted.committed else None


def _generator(keys: object) -> Any:
    """The random generator of keys. Found by tracing, because a ShapeDtypeStruct of keys does not say it."""
    generators: list[Any] = []
    jax.eval_shape(lambda k: generators.append(jax.random.key_impl(k)), keys)
    return generators[0]


def like(value: Any, wanted: Any, *, path: str) -> Any:
    """Converts what was read to the form of the model's own array.

    Args:
        value: A NumPy array, an array of JAX (already on its devices), a number, or random keys.
        wanted: The model's own.
        path: For messages.

    Raises:
        ValueError: The keys belong to a random generator other than the model's.
    """
    sharding = sharding_of(wanted)
    if is_key(wanted):
        impl = _generator(wanted)
        if is_key(value):
            if jax.random.key_impl(value) != impl:
                raise ValueError(
                    f"{path} holds keys of the random generator {jax.random.key_impl(value)} in the checkpoint, but of "
                    f"{impl} in the model. Make the model with keys of the same kind: "
                    f"nnx.Rngs(jax.random.key(0, impl={str(jax.random.key_impl(value))!r}))."
                )
            value = jax.random.key_data(value)
        keys = jax.random.wrap_key_data(jnp.asarray(np.asarray(value)), impl=impl)
        return keys if sharding is None else jax.device_put(keys, sharding)
    if is_key(value):
        value = jax.random.key_data(value)
    if isinstance(wanted, np.ndarray):
        return np.asarray(value, wanted.dtype)
    if not hasattr(wanted, "dtype"):
        return type(wanted)(np.asarray(value).item())
    if sharding is None:
        return jnp.asarray(np.asarray(value), wanted.dtype)
    return jax.device_put(value, sharding).astype(wanted.dtype)
