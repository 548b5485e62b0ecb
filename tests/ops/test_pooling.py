"""Pooling against Flax."""

from __future__ import annotations

import itertools

import flax.nnx as fnnx
import jax
import pytest

from sonde import ops
from sonde.errors import LayerInputError


@pytest.mark.every(4)
@pytest.mark.parametrize("shape", [(7, 6, 3), (2, 7, 6, 3), (2, 2, 7, 6, 3)])
@pytest.mark.parametrize("padding", ["SAME", "VALID", [(1, 1), (0, 1)]], ids=str)
def test_pooling_equals_flax(draw, close, shape, padding):
    if len(shape) == 5 and not isinstance(padding, str):
        return  # Flax fails on two batch axes with numbers; the next test has it.
    x = draw(*shape)
    for window, strides in itertools.product([(2, 2), (3, 2)], [None, (2, 1)]):
        for name in ("avg_pool", "max_pool", "min_pool"):
            close(getattr(ops, name)(x, window, strides, padding), getattr(fnnx, name)(x, window, strides, padding))
        ours = ops.avg_pool(x, window, strides, padding, count_include_pad=False)
        close(ours, fnnx.avg_pool(x, window, strides, padding, count_include_pad=False))


def test_two_batch_axes_with_a_padding_in_numbers(draw, close):
    x = draw(2, 3, 7, 5)
    each = jax.vmap(lambda x: ops.max_pool(x, (2,), (2,), [(1, 0)]))
    close(ops.max_pool(x, (2,), (2,), [(1, 0)]), each(x))


def test_gradients_equal_flax(draw, close):
    x = draw(2, 7, 6, 3)
    for name in ("avg_pool", "max_pool"):
        ours, theirs = (
            jax.grad(lambda x: (getattr(where, name)(x, (3, 2), (2, 2), "SAME") ** 2).sum())(x) for where in (ops, fnnx)
        )
        close(ours, theirs)


def test_what_does_not_fit_is_said(draw):
    with pytest.raises(LayerInputError) as caught:
        ops.max_pool(draw(4, 3), (2, 2))
    assert str(caught.value) == (
        "`inputs` has too few axes: expected at least 3 (2 spatial axes and the features), got 2 in float32[4,3]."
    )
    with pytest.raises(LayerInputError) as caught:
        ops.max_pool(draw(2, 4, 4, 3), (2, 2), padding=[(1, 1)])
    assert str(caught.value) == (
        "`padding` must be 'SAME', 'VALID' or one (low, high) pair for each of the 2 spatial axes, got [(1, 1)]."
    )
