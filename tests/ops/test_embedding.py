"""Tables of vectors against Flax."""

from __future__ import annotations

import flax.nnx as fnnx
import jax
import jax.numpy as jnp
import pytest

from sonde import ops
from sonde.errors import LayerInputError


@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
@pytest.mark.parametrize("rows", [1, 7])
def test_lookup_equals_flax(draw, close, dtype, rows):
    layer = fnnx.Embed(rows, 4, dtype=dtype, rngs=fnnx.Rngs(0))
    for indices in (
        *([jnp.array(3)] if rows > 1 else []),
        jnp.array([0, 3, 3]),
        jnp.array([[0, 9], [-1, 2]], jnp.int8),
    ):
        close(ops.embed(indices, layer.embedding[...], dtype=dtype), layer(indices))


def test_gradient_equals_flax(draw, close):
    indices = jnp.array([[0, 3], [3, 2]])
    table, weight = draw(7, 4), draw(2, 2, 4)
    ours = jax.grad(lambda t: (ops.embed(indices, t) * weight).sum())(table)
    graph, state = fnnx.split(fnnx.Embed(7, 4, rngs=fnnx.Rngs(0)))

    def theirs(t):
        layer = fnnx.merge(graph, fnnx.State({"embedding": state["embedding"].replace(t)}))
        return (layer(indices) * weight).sum()

    close(ours, jax.grad(theirs)(table))


@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
@pytest.mark.parametrize("shape", [(4,), (2, 4), (2, 3, 4)])
def test_attend_equals_flax(draw, close, dtype, shape):
    layer = fnnx.Embed(7, 4, dtype=dtype, rngs=fnnx.Rngs(0))
    query = draw(*shape)
    close(ops.attend(query, layer.embedding[...], dtype=layer.dtype), layer.attend(query))


def test_what_does_not_fit_is_said(draw):
    with pytest.raises(LayerInputError) as caught:
        ops.embed(draw(2), draw(7, 4))
    assert str(caught.value) == "`inputs` must hold integers (indices), got float32[2]."
    with pytest.raises(LayerInputError) as caught:
        ops.attend(draw(2, 3), draw(7, 4))
    assert str(caught.value) == (
        "`query` has the wrong number of features: expected 4 along axis -1, got 3 in float32[2,3]."
    )
