"""Generated shapes and options, against Flax: a few in every run, many in the thorough one."""

from __future__ import annotations

import flax.linen as nn
import flax.nnx as fnnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sonde import ops

sizes = st.integers(1, 6)
dtypes = st.sampled_from([jnp.float32, jnp.bfloat16])


def generated(*strategies):
    """A test of generated arguments, twice: a few examples, and, marked thorough, a few hundred."""

    def decorate(test):
        def examples(n):
            return settings(max_examples=n, derandomize=True, deadline=None, database=None)(given(*strategies)(test))

        @pytest.mark.parametrize(
            "run", [examples(2), pytest.param(examples(400), marks=pytest.mark.thorough)], ids=["few", "many"]
        )
        def both(run):
            run()

        return both

    return decorate


def array(seed: int, shape, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def equal(ours, theirs):
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    limit = 2e-2 if ours.dtype == jnp.bfloat16 else 2e-6
    a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    np.testing.assert_allclose(a, b, rtol=limit, atol=limit * np.abs(b).max(initial=0.0))


@st.composite
def convolutions(draw, *, transposed):
    rank = draw(st.integers(1, 2))
    one = lambda low, high: tuple(draw(st.integers(low, high)) for _ in range(rank))
    named = ["SAME", "VALID", "CIRCULAR"] + ([] if transposed else ["REFLECT"] + ["CAUSAL"] * (rank == 1))
    pairs = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=rank, max_size=rank)
    options = {
        "strides": one(1, 3),
        "kernel_dilation": one(1, 2),
        "padding": draw(st.sampled_from(named) | st.integers(0, 2) | pairs),
    }
    groups = 1 if transposed else draw(st.sampled_from([1, 1, 2]))
    if not transposed:
        options["feature_group_count"] = groups
    kernel = one(1, 4)
    # Long enough for the window, and for a mirror image of it.
    spatial = tuple(draw(st.integers((k - 1) * 2 + 1, 12)) for k in kernel)
    batch = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    return kernel, (*batch, *spatial, groups * draw(st.integers(1, 3))), groups * draw(st.integers(1, 3)), options


@generated(convolutions(transposed=False), dtypes, st.booleans())
def test_conv(case, dtype, use_bias):
    kernel_size, shape, features, options = case
    layer = nn.Conv(features, kernel_size, use_bias=use_bias, **options)
    x = array(0, shape, dtype)
    params = jax.tree.map(lambda p: array(1, p.shape), layer.init(jax.random.key(0), x)["params"])
    equal(ops.conv(x, params["kernel"], params.get("bias"), **options), layer.apply({"params": params}, x))


@generated(convolutions(transposed=True), st.booleans())
def test_conv_transpose(case, transpose_kernel):
    kernel_size, shape, features, options = case
    layer = nn.ConvTranspose(features, kernel_size, transpose_kernel=transpose_kernel, **options)
    x = array(0, shape)
    try:
        variables = layer.init(jax.random.key(0), x)
    except Exception:  # a result without elements, which JAX refuses in several ways
        assume(False)
    params = jax.tree.map(lambda p: array(1, p.shape), variables["params"])
    ours = ops.conv_transpose(x, params["kernel"], params["bias"], transpose_kernel=transpose_kernel, **options)
    equal(ours, layer.apply({"params": params}, x))


@st.composite
def contractions(draw):
    n_batch, n_in, n_left = draw(st.integers(0, 2)), draw(st.integers(1, 2)), draw(st.integers(0, 2))
    shape = tuple(draw(sizes) for _ in range(n_batch + n_in + n_left))
    axes = draw(st.permutations(range(n_batch, len(shape))))[:n_in]
    signed = [a if draw(st.booleans()) else a - len(shape) for a in axes]
    return shape, tuple(signed), tuple(range(n_batch)), tuple(draw(st.lists(sizes, min_size=1, max_size=2)))


@generated(contractions(), dtypes)
def test_dense_general(case, dtype):
    shape, axis, batch, features = case
    layer = nn.DenseGeneral(features, axis=axis, batch_dims=batch)
    x = array(0, shape, dtype)
    params = jax.tree.map(lambda p: array(1, p.shape), layer.init(jax.random.key(0), x)["params"])
    ours = ops.dense_general(x, params["kernel"], params["bias"], axis=axis, batch_axis=batch)
    equal(ours, layer.apply({"params": params}, x))


@st.composite
def attentions(draw):
    batch = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    heads, groups = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    queries, keys, depth = draw(sizes), draw(sizes), draw(sizes)
    scores = (*batch, heads * groups, queries, keys)
    some = lambda: tuple(n if draw(st.booleans()) else 1 for n in scores)
    return (*batch, queries, heads * groups, depth), (*batch, keys, heads, depth), some(), some()


@generated(attentions(), dtypes, st.booleans(), st.booleans(), st.booleans())
def test_attention(case, dtype, masked, biased, is_causal):
    q_shape, k_shape, mask_shape, bias_shape = case
    q, k, v = array(0, q_shape, dtype), array(1, k_shape, dtype), array(2, k_shape, dtype)
    mask = (array(3, mask_shape) > 0).at[..., 0].set(True) if masked else None
    bias = array(4, bias_shape) if biased else None
    ours = ops.fused_attention(q, k, v, mask=mask, bias=bias, is_causal=is_causal)
    # Flax wants all batch axes of masks and biases written out.
    full = lambda x: None if x is None else jnp.broadcast_to(x, (*q_shape[:-3], *x.shape[-3:]))
    equal(ours, fnnx.dot_product_attention(q, k, v, mask=full(mask), bias=full(bias), is_causal=is_causal))


@st.composite
def normalizations(draw):
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=2, max_size=4)))
    axes = st.lists(st.integers(0, len(shape) - 1), min_size=1, max_size=len(shape), unique=True)
    return shape, tuple(draw(axes)), tuple(sorted(draw(axes)))


@generated(normalizations(), dtypes, st.booleans(), st.booleans(), st.sampled_from([None, jnp.bfloat16]))
def test_layer_norm(case, x_dtype, fast, masked, dtype):
    shape, reduction_axes, feature_axes = case
    layer = nn.LayerNorm(
        reduction_axes=reduction_axes, feature_axes=feature_axes, use_fast_variance=fast, epsilon=0.1, dtype=dtype
    )
    x = array(0, shape, x_dtype)
    # The first element along every axis counts, so that there is always something to average.
    mask = (array(2, shape) > 0) | (sum(np.indices(shape)[list(reduction_axes)]) == 0) if masked else None
    params = jax.tree.map(lambda p: array(1, p.shape), layer.init(jax.random.key(0), x)["params"])
    ours = ops.layer_norm(
        x,
        params["scale"],
        params["bias"],
        reduction_axes=reduction_axes,
        feature_axes=feature_axes,
        use_fast_variance=fast,
        epsilon=0.1,
        mask=mask,
        dtype=dtype,
        promote_dtype=None,
    )
    equal(ours, layer.apply({"params": params}, x, mask=mask))
