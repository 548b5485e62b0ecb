"""Convolutions against Flax; the arithmetic has more cases in tests/ops."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from sonde import nnx
from sonde.errors import LayerInputError


@pytest.mark.every(4)
@pytest.mark.parametrize("padding", ["SAME", "VALID", "CIRCULAR", "REFLECT", "CAUSAL", 1, [(1, 2)]], ids=str)
@pytest.mark.parametrize("options", [{}, {"strides": 2, "kernel_dilation": 2}, {"feature_group_count": 3}], ids=str)
def test_conv(same, draw, padding, options):
    x = draw(2, 11, 3)
    same(lambda n, rngs: n.Conv(3, 6, 3, padding=padding, rngs=rngs, **options), lambda n, m: m(x))


@pytest.mark.every(2)
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)], ids=str)
@pytest.mark.parametrize("options", [{}, {"use_bias": False}, {"dtype": jnp.bfloat16}], ids=str)
def test_conv_in_two_dimensions(same, draw, batch, options):
    x = draw(*batch, 6, 5, 3)
    same(lambda n, rngs: n.Conv(3, 4, (3, 2), (1, 2), rngs=rngs, **options), lambda n, m: m(x))


def test_a_masked_conv(same, draw):
    x, mask = draw(2, 7, 3), draw(3, 3, 4) > 0
    same(lambda n, rngs: n.Conv(3, 4, 3, mask=mask, rngs=rngs), lambda n, m: m(x))


@pytest.mark.every(5)
@pytest.mark.parametrize("padding", ["SAME", "VALID", "CIRCULAR", 1], ids=str)
@pytest.mark.parametrize("options", [{}, {"strides": 2}, {"transpose_kernel": True, "strides": 3}], ids=str)
def test_conv_transpose(same, draw, padding, options):
    x = draw(2, 5, 3)
    same(lambda n, rngs: n.ConvTranspose(3, 4, 3, padding=padding, rngs=rngs, **options), lambda n, m: m(x))


@pytest.mark.parametrize(
    "call, words",
    [
        (
            lambda d: nnx.Conv(3, 4, (3, 3), rngs=nnx.Rngs(0))(d(8, 3)),
            "Conv: `inputs` has too few axes: expected at least 3 (2 spatial axes and the features), got 2 in "
            "float32[8,3].",
        ),
        (
            lambda d: nnx.Conv(3, 4, 3, rngs=nnx.Rngs(0))(d(2, 8, 4)),
            "Conv: `inputs` has the wrong number of input features: expected 3 along axis -1, got 4 in float32[2,8,4].",
        ),
        (
            lambda d: nnx.Conv(3, 4, 3, feature_group_count=2, rngs=nnx.Rngs(0)),
            "Conv: feature_group_count=2 does not divide in_features=3.",
        ),
        (
            lambda d: nnx.Conv(3, 4, 3, mask=d(3, 3), rngs=nnx.Rngs(0))(d(2, 8, 3)),
            "Conv: `mask` has the wrong shape: expected (3, 3, 4) (that of the kernel), got float32[3,3].",
        ),
        (
            lambda d: nnx.ConvTranspose(3, 4, 3, rngs=nnx.Rngs(0))(d(2, 8, 4)),
            "ConvTranspose: `inputs` has the wrong number of input features: expected 3 along axis -1, got 4 in "
            "float32[2,8,4].",
        ),
    ],
)
def test_what_does_not_fit_is_said(draw, call, words):
    with pytest.raises(LayerInputError) as caught:
        call(draw)
    assert str(caught.value) == words
