"""Which dtype a layer computes in, and what its parameters start with."""

from __future__ import annotations

import flax.linen as nn
import flax.nnx as fnnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sonde import ops
from sonde.ops import default_initializers, initializers

VALUES = [jnp.ones(2, jnp.int8), jnp.ones(2, jnp.bfloat16), jnp.ones(2), 1.0, 2, None, jnp.ones(2, jnp.complex64)]


def test_the_dtype_is_that_of_flax():
    for a in VALUES[:-2]:
        for b in VALUES:
            for dtype in (None, jnp.bfloat16):
                for inexact in (True, False):
                    theirs = nn.dtypes.canonicalize_dtype(a, b, dtype=dtype, inexact=inexact)
                    assert ops.canonicalize_dtype(a, b, dtype=dtype, inexact=inexact) == theirs


def test_promotion_is_that_of_flax(close):
    for a in VALUES[:-2]:
        for b in VALUES:
            close(ops.promote_dtype((a, b)), fnnx.nn.dtypes.promote_dtype((a, b)))


def test_an_array_of_the_right_dtype_is_left_alone():
    x = jnp.ones(2)
    assert ops.promote_dtype((x,))[0] is x
    weak = jnp.asarray(1.0)
    assert weak.weak_type
    assert not ops.promote_dtype((weak,), dtype=jnp.float32)[0].weak_type


def test_an_integer_dtype_is_refused():
    with pytest.raises(ValueError, match=r"dtype must be inexact \(floating or complex\) to compute in, got int32"):
        ops.canonicalize_dtype(dtype=jnp.dtype("int32"))


@pytest.mark.parametrize(
    "ours, theirs, shape",
    [
        (default_initializers.default_kernel_init, fnnx.nn.linear.default_kernel_init, (6, 4)),
        (default_initializers.default_embed_init, fnnx.nn.linear.default_embed_init, (6, 4)),
        (default_initializers.default_lora_a_init, fnnx.nn.lora.default_a_initializer, (6, 4)),
        (default_initializers.orthogonal_any_dtype, fnnx.nn.recurrent.modified_orthogonal, (4, 4)),
    ],
)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_defaults_are_those_of_flax(ours, theirs, shape, dtype):
    key = jax.random.key(0)
    np.testing.assert_array_equal(ours(key, shape, dtype), theirs(key, shape, dtype))


def test_every_initializer_and_activation_of_flax_is_here():
    for name in dir(fnnx.initializers):
        if not name.startswith("_") and name not in ("tp", "DtypeLikeInexact"):
            assert hasattr(initializers, name), name
    names = set(dir(fnnx.nn.activations)) - {"Array", "Dtype", "MappingProxyType", "PReLU", "PromoteDtypeFn"}
    for name in names - {"dtypes", "jnp", "nnx", "tp"}:
        if not name.startswith("_"):
            assert getattr(ops.activations, name) is getattr(fnnx, name), name


def test_prelu_and_low_rank_equal_flax(draw, close):
    x = draw(2, 3, dtype=jnp.bfloat16)
    close(ops.prelu(x, jnp.float32(0.2)), nn.PReLU().apply({"params": {"negative_slope": jnp.float32(0.2)}}, x))
    layer = fnnx.LoRA(3, 2, 4, b_initializer=fnnx.initializers.normal(), rngs=fnnx.Rngs(0))
    x = draw(2, 5, 3)
    close(ops.low_rank(x, layer.lora_a[...], layer.lora_b[...]), layer(x))
    with pytest.raises(ValueError, match="`x` has the wrong number of input features: expected 3 along axis -1"):
        ops.low_rank(draw(2, 4), layer.lora_a[...], layer.lora_b[...])
