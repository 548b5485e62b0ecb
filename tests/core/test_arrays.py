import jax
import jax.numpy as jnp
import numpy as np

from sonde.core.arrays import arrays_in, is_array_like


def test_arrays_are_found_in_order_and_the_rest_left_out():
    a, b, kind = jnp.ones(2), np.float32(3), jax.ShapeDtypeStruct((4,), jnp.int32)
    found = arrays_in({"a": a, "b": ["text", 1.5, b], "c": (None, kind)})
    assert [id(x) for x in found] == [id(a), id(b), id(kind)]


def test_what_is_traced_is_an_array():
    seen = []
    jax.jit(lambda x: seen.append(is_array_like(x)) or x)(1.0)
    assert seen == [True]
    assert not is_array_like(1.0)
