"""Linear maps against Flax."""

from __future__ import annotations

import itertools

import flax.linen as nn
import flax.nnx as fnnx
import jax
import jax.numpy as jnp
import pytest

from sonde import ops
from sonde.errors import LayerInputError


@pytest.mark.parametrize(
    "dtype, param_dtype", list(itertools.product([None, jnp.bfloat16], [jnp.float32, jnp.bfloat16]))
)
@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 5, 3)])
@pytest.mark.parametrize("use_bias", [True, False])
def test_dense_equals_flax(draw, close, shape, dtype, param_dtype, use_bias):
    layer = fnnx.Linear(3, 4, dtype=dtype, param_dtype=param_dtype, use_bias=use_bias, rngs=fnnx.Rngs(0))
    bias = None
    if use_bias:
        layer.bias.set_value(draw(4, dtype=param_dtype))
        bias = layer.bias[...]
    x = draw(*shape)
    close(ops.dense(x, layer.kernel[...], bias, dtype=dtype), layer(x))


def test_dense_of_integers_is_float32(draw, close):
    layer = fnnx.Linear(3, 4, rngs=fnnx.Rngs(0))
    x = jnp.arange(6).reshape(2, 3)
    close(ops.dense(x, layer.kernel[...], layer.bias[...]), layer(x))


def test_dense_passes_only_what_is_set_to_a_replacement(draw):
    seen = {}

    def dot_general(x, kernel, dimensions, *, precision):
        seen["precision"] = precision
        return jax.lax.dot_general(x, kernel, dimensions, precision=precision)

    ops.dense(draw(2, 3), draw(3, 4), dot_general=dot_general, precision="highest")
    assert seen == {"precision": "highest"}


def test_preferred_element_type_is_the_result_type(draw):
    y = ops.dense(draw(2, 3, dtype=jnp.bfloat16), draw(3, 4, dtype=jnp.bfloat16), preferred_element_type=jnp.float32)
    assert y.dtype == jnp.float32


@pytest.mark.parametrize(
    "shape, n_in, axis, out, batch",
    [
        ((2, 5, 3), (3,), (-1,), (4,), {}),
        ((2, 5, 3), (3,), (2,), (4, 6), {}),
        ((2, 5, 3), (5, 3), (1, 2), (4,), {}),
        ((2, 5, 3), (5, 3), (2, 1), (4, 2), {}),
        ((2, 5, 3), (2, 3), (0, -1), (4,), {}),
        ((2, 5, 3), (3,), (-1,), (4, 6), {0: 2}),
        ((2, 5, 7, 3), (7,), (2,), (4,), {0: 2, 1: 5}),
    ],
)
def test_dense_general_equals_flax(draw, close, shape, n_in, axis, out, batch):
    layer = fnnx.LinearGeneral(n_in, out, axis=axis, batch_axis=batch, rngs=fnnx.Rngs(0))
    layer.bias.set_value(draw(*layer.bias.shape))
    x = draw(*shape)
    ours = ops.dense_general(x, layer.kernel[...], layer.bias[...], axis=axis, batch_axis=tuple(batch))
    close(ours, layer(x))


@pytest.mark.parametrize(
    "equation, shape, kernel, bias",
    [
        ("nta,ab->ntb", (2, 5, 3), (3, 4), (4,)),
        ("nta,abc->ntbc", (2, 5, 3), (3, 4, 6), (4, 6)),
        ("nta,abc->nctb", (2, 5, 3), (3, 4, 6), (6, 4)),
        ("...a,ab->...b", (2, 5, 3), (3, 4), (4,)),
        ("...ta,ab->...bt", (2, 5, 3), (3, 4), (4,)),
        ("nta, tab -> ntb", (2, 5, 3), (5, 3, 4), (5, 4)),
    ],
)
def test_einsum_equals_flax(draw, close, equation, shape, kernel, bias):
    layer = fnnx.Einsum(equation, kernel, bias, rngs=fnnx.Rngs(0))
    if bias:
        layer.bias.set_value(draw(*bias))
        assert ops.einsum_bias_shape(equation, kernel) == bias
    x = draw(*shape)
    ours = ops.einsum(equation, x, layer.kernel[...], layer.bias[...] if bias else None)
    close(ours, layer(x))


@pytest.mark.parametrize("equation, kernel", [("nta,ab->ntb", (3, 4)), ("nta,abc->nctb", (3, 4, 6))])
def test_bias_shape_is_that_of_linen(draw, equation, kernel):
    params = nn.Einsum(kernel, equation).init(jax.random.key(0), draw(2, 5, 3))["params"]
    assert params["bias"].shape == ops.einsum_bias_shape(equation, kernel)


def test_gradients_equal_flax(draw, close):
    layer = fnnx.LinearGeneral((5, 3), (4, 2), axis=(1, 2), rngs=fnnx.Rngs(0))
    x = draw(2, 5, 3)

    def ours(kernel, x):
        return (ops.dense_general(x, kernel, layer.bias[...], axis=(1, 2)) ** 2).sum()

    def theirs(kernel, x):
        graph, state = fnnx.split(layer)
        state = fnnx.State({"kernel": state["kernel"].replace(kernel), "bias": state["bias"]})
        return (fnnx.merge(graph, state)(x) ** 2).sum()

    kernel = layer.kernel[...]
    close(jax.grad(ours, (0, 1))(kernel, x), jax.grad(theirs, (0, 1))(kernel, x))


@pytest.mark.parametrize(
    "call, words",
    [
        (
            lambda d: ops.dense(d(2, 5), d(3, 4)),
            "`inputs` has the wrong number of input features: expected 3 along axis -1, got 5 in float32[2,5].",
        ),
        (
            lambda d: ops.dense(jnp.float32(1.0), d(3, 4)),
            "`inputs` has no axis -1: expected 3 input features along it, got float32[].",
        ),
        (
            lambda d: ops.dense_general(d(2, 5, 3), d(5, 4, 6), axis=(1, 2)),
            "`inputs` has the wrong number of input features: expected 4 along axis 2, got 3 in float32[2,5,3].",
        ),
        (
            lambda d: ops.dense_general(d(2, 5, 3), d(7, 3, 6), batch_axis=(0,)),
            "`inputs` has the wrong number of batch elements: expected 7 along axis 0, got 2 in float32[2,5,3].",
        ),
        (
            lambda d: ops.einsum("nta,ab->ntb", d(2, 5, 7), d(3, 4)),
            "`inputs` has the wrong number of elements for letter 'a' of 'nta,ab->ntb': expected 3 along "
            "axis 2, "
            "got 7 in float32[2,5,7].",
        ),
        (
            lambda d: ops.einsum("nta,ab->ntb", d(2, 3), d(3, 4)),
            "`inputs` must have 3 axes for the einsum equation 'nta,ab->ntb', got float32[2,3].",
        ),
        (
            lambda d: ops.einsum("nta->nt", d(2, 5, 3), d(3, 4)),
            "the einsum equation 'nta->nt' must have two operands, the inputs and the kernel, such as 'nd,dk->nk'.",
        ),
        (
            lambda d: ops.einsum("nta,ab", d(2, 5, 3), d(3, 4)),
            "the einsum equation 'nta,ab' has no '->' before the result; write it as in 'nd,dk->nk'.",
        ),
        (
            lambda d: ops.einsum("nta,abc->ntb", d(2, 5, 3), d(3, 4)),
            "the kernel has shape (3, 4), which does not fit the 3 letters 'abc' of the einsum equation "
            "'nta,abc->ntb'.",
        ),
    ],
)
def test_what_does_not_fit_is_said(draw, call, words):
    with pytest.raises(LayerInputError) as caught:
        call(draw)
    assert str(caught.value) == words
