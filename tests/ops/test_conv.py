"""Convolutions against Flax, for generated options."""

from __future__ import annotations

import itertools

import flax.linen as nn
import flax.nnx as fnnx
import jax
import jax.numpy as jnp
import pytest

from sonde import ops
from sonde.errors import LayerInputError

# Every eleventh of all combinations has every value of each option; the thorough run has all of them.
COMBINATIONS = pytest.mark.parametrize(
    "every", [pytest.param(11, id="some"), pytest.param(1, id="all", marks=pytest.mark.thorough)]
)
PADDINGS = ["SAME", "VALID", "SAME_LOWER", "CIRCULAR", "CAUSAL", "REFLECT", 2, [(1, 2)], [1]]


@pytest.mark.every(13)
@pytest.mark.parametrize("padding", PADDINGS, ids=str)
@pytest.mark.parametrize("kernel_size", [1, 2, 3, 4])
def test_conv_equals_flax_in_one_dimension(draw, close, padding, kernel_size):
    for strides, dilation, groups in itertools.product([1, 2], [1, 2], [1, 2]):
        options = {"strides": strides, "padding": padding, "kernel_dilation": dilation, "feature_group_count": groups}
        layer = fnnx.Conv(4, 6, kernel_size, **options, rngs=fnnx.Rngs(0))
        layer.bias.set_value(draw(6))
        x = draw(2, 11, 4)
        close(ops.conv(x, layer.kernel[...], layer.bias[...], **options), layer(x))


@pytest.mark.every(2)
@pytest.mark.parametrize("padding", ["SAME", "VALID", "valid", "CIRCULAR", "REFLECT", 1, [(1, 2), (0, 1)]], ids=str)
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_conv_equals_flax_in_two_dimensions(draw, close, padding, batch):
    options = {"strides": (2, 1), "padding": padding, "kernel_dilation": (1, 2)}
    layer = fnnx.Conv(3, 4, (3, 2), **options, rngs=fnnx.Rngs(0))
    x = draw(*batch, 9, 8, 3)
    close(ops.conv(x, layer.kernel[...], layer.bias[...], **options), layer(x))


def test_conv_of_a_dilated_input_equals_flax(draw, close):
    options = {"padding": [(2, 1)], "input_dilation": 2, "strides": None}
    layer = fnnx.Conv(3, 4, 3, **options, rngs=fnnx.Rngs(0))
    x = draw(2, 9, 3)
    close(ops.conv(x, layer.kernel[...], layer.bias[...], **options), layer(x))


def test_a_masked_kernel_equals_flax(draw, close):
    mask = jnp.asarray(draw(3, 3, 4) > 0, jnp.float32)
    layer = fnnx.Conv(3, 4, 3, mask=mask, dtype=jnp.bfloat16, rngs=fnnx.Rngs(0))
    x = draw(2, 9, 3)
    close(ops.conv(x, layer.kernel[...], layer.bias[...], mask=mask, dtype=jnp.bfloat16), layer(x))
    grad = jax.grad(lambda k: ops.conv(x, k, mask=mask).sum())(layer.kernel[...])
    assert jnp.all((grad == 0) | (mask == 1))
    assert jnp.any(grad != 0)


@pytest.mark.every(2)
@pytest.mark.parametrize("padding", ["SAME", "VALID", "CIRCULAR", 1, [(1, 2)]], ids=str)
@pytest.mark.parametrize("transpose_kernel", [False, True])
@COMBINATIONS
def test_conv_transpose_equals_flax(draw, close, padding, transpose_kernel, every):
    combinations = [*itertools.product([1, 2, 3], [1, 2, 3, 5], [4, 5], [1, 2])][transpose_kernel::every]
    for strides, size, length, dilation in combinations:
        if padding not in ("SAME", "CIRCULAR") and (size - 1) * dilation < 2:
            continue
        options = {
            "strides": strides,
            "padding": padding,
            "transpose_kernel": transpose_kernel,
            "kernel_dilation": dilation,
        }
        layer = fnnx.ConvTranspose(3, 4, size, **options, rngs=fnnx.Rngs(0))
        x = draw(2, length, 3)
        close(ops.conv_transpose(x, layer.kernel[...], layer.bias[...], **options), layer(x))


@pytest.mark.parametrize("padding", ["SAME", "CIRCULAR"])
def test_conv_transpose_equals_flax_in_two_dimensions(draw, close, padding):
    options = {"strides": (2, 3), "padding": padding}
    layer = fnnx.ConvTranspose(3, 4, (3, 4), **options, rngs=fnnx.Rngs(0))
    x = draw(2, 2, 4, 5, 3)
    close(ops.conv_transpose(x, layer.kernel[...], layer.bias[...], **options), layer(x))


@pytest.mark.every(4)
@pytest.mark.parametrize("padding", ["SAME", "VALID", "CIRCULAR", "CAUSAL", 1], ids=str)
@pytest.mark.parametrize("strides, dilation", [(1, 1), (2, 1), (1, 2)])
def test_conv_local_equals_flax(draw, close, padding, strides, dilation):
    options = {"strides": strides, "padding": padding, "kernel_dilation": dilation}
    layer = nn.ConvLocal(4, (3,), **options)
    x = draw(2, 9, 3)
    params = layer.init(jax.random.key(0), x)["params"]
    params = jax.tree.map(lambda p: draw(*p.shape), params)
    shape = ops.conv_local_kernel_shape(x.shape, 4, kernel_size=(3,), **options)
    assert shape == params["kernel"].shape
    ours = ops.conv_local(x, params["kernel"], params["bias"], kernel_size=(3,), **options)
    close(ours, layer.apply({"params": params}, x))


@pytest.mark.parametrize(
    "call, words",
    [
        (
            lambda d: ops.conv(d(8, 3), d(3, 3, 3, 4)),
            "`inputs` has too few axes: expected at least 3 (2 spatial axes and the features), got 2 in float32[8,3].",
        ),
        (
            lambda d: ops.conv(d(2, 8, 4), d(3, 3, 4)),
            "`inputs` has the wrong number of input features: expected 3 along axis -1, got 4 in float32[2,8,4].",
        ),
        (
            lambda d: ops.conv(d(2, 8, 3), d(3, 3, 4), mask=d(3, 3)),
            "`mask` has the wrong shape: expected (3, 3, 4) (that of the kernel), got float32[3,3].",
        ),
        (
            lambda d: ops.conv(d(2, 8, 3), d(3, 3, 4), padding="circular"),
            "unknown padding 'circular': expected one of 'SAME', 'VALID', 'SAME_LOWER', 'CIRCULAR', "
            "'REFLECT', "
            "'CAUSAL', a number, or pairs of numbers.",
        ),
        (
            lambda d: ops.conv(d(2, 8, 8, 3), d(3, 3, 3, 4), padding=[1]),
            "padding=[1] is not valid: expected a name, a number, or for each of the 2 spatial axes a number "
            "or a (low, high) pair.",
        ),
        (
            lambda d: ops.conv(d(2, 8, 8, 3), d(3, 3, 3, 4), padding="CAUSAL"),
            "padding 'CAUSAL' needs one spatial axis to run along, got a kernel with 2 spatial axes.",
        ),
        (
            lambda d: ops.conv(d(2, 8, 8, 3), d(3, 3, 3, 4), strides=(1, 2, 3)),
            "`strides` must be a number or have one number for each of the 2 spatial axes, got (1, 2, 3).",
        ),
        (
            lambda d: ops.conv(d(2, 8, 6), d(3, 3, 5), feature_group_count=2),
            "feature_group_count=2 does not divide the 5 output features of the kernel.",
        ),
        (
            lambda d: ops.conv(d(2, 8, 3), d(3, 3, 4), input_dilation=2),
            "padding 'SAME' is undefined for a dilated input (input_dilation=(2,)): give the padding in "
            "numbers, or use a transposed convolution.",
        ),
        (
            lambda d: ops.conv_transpose(d(2, 8, 3), d(3, 3, 4), padding="CAUSAL"),
            "unknown padding 'CAUSAL' for a transposed convolution: expected 'SAME', 'VALID', 'CIRCULAR', a "
            "number, "
            "or pairs of numbers.",
        ),
    ],
)
def test_what_does_not_fit_is_said(draw, call, words):
    with pytest.raises(LayerInputError) as caught:
        call(draw)
    assert str(caught.value) == words
