"""Normalization against both Flax faces."""

from __future__ import annotations

import flax.linen as nn
import flax.nnx as fnnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sonde
from sonde import ops
from sonde.errors import LayerInputError

DTYPES = [(None, jnp.float32, jnp.float32), (None, jnp.bfloat16, jnp.float32), (jnp.bfloat16,) * 2 + (jnp.float32,)]
BOTH = [True, False]


def values(layer):
    """Flax keeps the option, not the parameter, under the name when it is switched off."""
    return tuple(None if getattr(layer, n) is None else getattr(layer, n)[...] for n in ("scale", "bias"))


def randomize(layer, draw):
    for name in ("scale", "bias", "mean", "var"):
        variable = getattr(layer, name, None)
        if isinstance(variable, fnnx.Variable):
            variable.set_value(jnp.abs(draw(*variable.shape, dtype=variable.dtype)) + 0.5)


@pytest.mark.every(11)
@pytest.mark.parametrize("dtype, x_dtype, param_dtype", DTYPES)
@pytest.mark.parametrize("fast", BOTH)
@pytest.mark.parametrize("masked", BOTH)
@pytest.mark.parametrize("use_bias, use_scale", [(True, True), (False, True), (True, False), (False, False)])
def test_layer_norm_equals_nnx(draw, close, dtype, x_dtype, param_dtype, fast, masked, use_bias, use_scale):
    layer = fnnx.LayerNorm(
        6,
        dtype=dtype,
        param_dtype=param_dtype,
        use_fast_variance=fast,
        use_bias=use_bias,
        use_scale=use_scale,
        rngs=fnnx.Rngs(0),
    )
    randomize(layer, draw)
    x = draw(2, 5, 6, dtype=x_dtype, shift=1.0)
    mask = draw(2, 5, 6) > -1.0 if masked else None
    ours = ops.layer_norm(x, *values(layer), dtype=dtype, use_fast_variance=fast, mask=mask)
    close(ours, layer(x, mask=mask))


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "reduction_axes, feature_axes", [(-1, -1), ((1, 2), -1), (1, 1), ((0, 2), 2), ((1, 2), (1, 2))]
)
def test_layer_norm_over_any_axes_equals_linen(draw, close, reduction_axes, feature_axes):
    layer = nn.LayerNorm(reduction_axes=reduction_axes, feature_axes=feature_axes)
    x = draw(3, 4, 5)
    params = jax.tree.map(lambda p: draw(*p.shape), layer.init(jax.random.key(0), x)["params"])
    ours = ops.layer_norm(
        x,
        params["scale"],
        params["bias"],
        reduction_axes=reduction_axes,
        feature_axes=feature_axes,
        promote_dtype=None,
    )
    close(ours, layer.apply({"params": params}, x))


@pytest.mark.every(3)
@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
@pytest.mark.parametrize("force", BOTH)
@pytest.mark.parametrize("fast", BOTH)
def test_linen_does_not_promote_first(draw, close, dtype, force, fast):
    layer = nn.LayerNorm(dtype=dtype, force_float32_reductions=force, use_fast_variance=fast)
    x = draw(3, 6, dtype=jnp.bfloat16)
    params = jax.tree.map(lambda p: draw(*p.shape), layer.init(jax.random.key(0), x)["params"])
    ours = ops.layer_norm(
        x,
        params["scale"],
        params["bias"],
        dtype=dtype,
        promote_dtype=None,
        force_float32_reductions=force,
        use_fast_variance=fast,
    )
    close(ours, layer.apply({"params": params}, x), rtol=2e-2 if not force or dtype else None)


@pytest.mark.parametrize("dtype, x_dtype, param_dtype", DTYPES)
@pytest.mark.parametrize("masked", BOTH)
def test_rms_norm_equals_nnx(draw, close, dtype, x_dtype, param_dtype, masked):
    layer = fnnx.RMSNorm(6, dtype=dtype, param_dtype=param_dtype, rngs=fnnx.Rngs(0))
    randomize(layer, draw)
    x = draw(2, 5, 6, dtype=x_dtype)
    mask = draw(2, 5, 6) > -1.0 if masked else None
    close(ops.rms_norm(x, layer.scale[...], dtype=dtype, mask=mask), layer(x, mask=mask))


@pytest.mark.every(11)
@pytest.mark.parametrize("dtype, x_dtype, param_dtype", DTYPES)
@pytest.mark.parametrize("running", BOTH)
@pytest.mark.parametrize("fast, masked", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("axis", [-1, 1])
def test_batch_norm_equals_nnx(draw, close, dtype, x_dtype, param_dtype, running, fast, masked, axis):
    layer = fnnx.BatchNorm(
        5,
        dtype=dtype,
        param_dtype=param_dtype,
        axis=axis,
        momentum=0.9,
        use_fast_variance=fast,
        use_running_average=running,
        rngs=fnnx.Rngs(0),
    )
    randomize(layer, draw)
    x = draw(4, 5, 5, dtype=x_dtype, shift=0.5)
    mask = draw(4, 1, 5) > -1.0 if masked else None
    ours = ops.batch_norm(
        x,
        *values(layer),
        layer.mean[...],
        layer.var[...],
        use_running_average=running,
        axis=axis,
        momentum=0.9,
        use_fast_variance=fast,
        mask=mask,
        dtype=dtype,
    )
    y = layer(x, mask=mask)
    close(ours, (y, layer.mean[...], layer.var[...]))


def test_batch_norm_over_devices_equals_linen(draw, close):
    x = draw(4, 3, 5)
    for fast in BOTH:
        layer = nn.BatchNorm(use_running_average=False, axis_name="devices", use_fast_variance=fast)
        variables = layer.init(jax.random.key(0), x[0])
        stats, params = variables["batch_stats"], variables["params"]

        def ours(x, fast=fast, stats=stats, params=params):
            return ops.batch_norm(
                x,
                params["scale"],
                params["bias"],
                stats["mean"],
                stats["var"],
                use_running_average=False,
                axis_name="devices",
                use_fast_variance=fast,
                promote_dtype=None,
            )

        def theirs(x, layer=layer, variables=variables):
            y, new = layer.apply(variables, x, mutable=["batch_stats"])
            return y, new["batch_stats"]["mean"], new["batch_stats"]["var"]

        close(jax.vmap(ours, axis_name="devices")(x), jax.vmap(theirs, axis_name="devices")(x))


@pytest.mark.every(23)
@pytest.mark.parametrize("dtype, x_dtype, param_dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 6), (2, 5, 6), (2, 4, 5, 6)])
@pytest.mark.parametrize("groups", [1, 2, 3, 6])
@pytest.mark.parametrize("masked", BOTH)
def test_group_norm_equals_nnx(draw, close, dtype, x_dtype, param_dtype, shape, groups, masked):
    layer = fnnx.GroupNorm(6, groups, dtype=dtype, param_dtype=param_dtype, rngs=fnnx.Rngs(0))
    randomize(layer, draw)
    x = draw(*shape, dtype=x_dtype)
    mask = draw(*shape).at[..., 0].set(1.0).at[..., 3].set(1.0) > -1.0 if masked and groups < 3 else None
    close(ops.group_norm(x, *values(layer), num_groups=groups, dtype=dtype, mask=mask), layer(x, mask=mask))


@pytest.mark.every(3)
@pytest.mark.parametrize("reduction_axes", [(3,), (1, 2, 3), (0, -1), (1, -1)])
def test_group_norm_over_some_axes_equals_linen(draw, close, reduction_axes):
    # Not nnx: it spreads the statistics of a group along another axis than that of the features.
    layer = nn.GroupNorm(2, reduction_axes=reduction_axes)
    x = draw(2, 4, 5, 6)
    params = jax.tree.map(lambda p: draw(*p.shape), layer.init(jax.random.key(0), x)["params"])
    ours = ops.group_norm(x, params["scale"], params["bias"], num_groups=2, reduction_axes=reduction_axes)
    close(ours, layer.apply({"params": params}, x))


@pytest.mark.parametrize("feature_axes", [-1, (1,), (1, 3)])
def test_instance_norm_equals_linen(draw, close, feature_axes):
    layer = nn.InstanceNorm(feature_axes=feature_axes)
    x = draw(2, 4, 5, 6)
    params = jax.tree.map(lambda p: draw(*p.shape), layer.init(jax.random.key(0), x)["params"])
    ours = ops.instance_norm(x, params["scale"], params["bias"], feature_axes=feature_axes, promote_dtype=None)
    close(ours, layer.apply({"params": params}, x))


def test_complex_numbers_have_a_real_variance(draw, close):
    x = draw(3, 6) + 1j * draw(3, 6)
    layer = fnnx.LayerNorm(6, use_bias=False, use_scale=False, rngs=fnnx.Rngs(0))
    close(ops.layer_norm(x), layer(x))


def test_gradients_equal_flax(draw, close):
    x, scale, bias = draw(4, 3, 6), draw(6), draw(6)
    layer = nn.BatchNorm(use_running_average=False)
    stats = {"mean": jnp.zeros(6), "var": jnp.ones(6)}

    def ours(x, scale, bias):
        y, *_ = ops.batch_norm(x, scale, bias, stats["mean"], stats["var"], use_running_average=False)
        return (y**3).sum()

    def theirs(x, scale, bias):
        variables = {"params": {"scale": scale, "bias": bias}, "batch_stats": stats}
        return (layer.apply(variables, x, mutable=["batch_stats"])[0] ** 3).sum()

    close(jax.grad(ours, (0, 1, 2))(x, scale, bias), jax.grad(theirs, (0, 1, 2))(x, scale, bias), rtol=4e-6)


NORMS = {
    "layer": lambda x, scale, bias: ops.layer_norm(x, scale, bias),
    "group": lambda x, scale, bias: ops.group_norm(x, scale, bias, num_groups=2),
    "batch": lambda x, scale, bias: ops.batch_norm(
        x, scale, bias, jnp.zeros(6), jnp.ones(6), use_running_average=False
    )[0],
}


@pytest.mark.every(2)
@pytest.mark.parametrize("kind", NORMS)
def test_the_normalized_values_are_seen_and_nothing_changes(draw, kind):
    norm = NORMS[kind]
    x, scale, bias = draw(4, 3, 6), draw(6), draw(6)
    y, seen = sonde.capture(norm)(x, scale, bias)
    np.testing.assert_array_equal(y, norm(x, scale, bias))
    unscaled = norm(x, None, None)
    np.testing.assert_allclose(seen["normalized"].value, unscaled, rtol=1e-6, atol=1e-6)
    doubled = sonde.edit(norm, {"factor": 2 * seen["factor"].value})(x, scale, bias)
    np.testing.assert_allclose(doubled, 2 * norm(x, scale, None) + bias, rtol=1e-5, atol=1e-5)

    def loss(x, scale, bias):
        return (norm(x, scale, bias) ** 3).sum()

    (value, grads), seen = sonde.capture(jax.value_and_grad(loss, (0, 1, 2)), grads=True)(x, scale, bias)
    plain = jax.value_and_grad(loss, (0, 1, 2))(x, scale, bias)
    jax.tree.map(np.testing.assert_array_equal, (value, grads), plain)
    expected = 3 * norm(x, scale, bias) ** 2 * scale
    np.testing.assert_allclose(seen["normalized"].grad, expected, rtol=1e-5, atol=1e-5)


LAYERS = {
    "layer": lambda n: n.LayerNorm(6, rngs=n.Rngs(0)),
    "rms": lambda n: n.RMSNorm(6, rngs=n.Rngs(0)),
    "group": lambda n: n.GroupNorm(6, num_groups=2, rngs=n.Rngs(0)),
    "instance": lambda n: n.InstanceNorm(6, rngs=n.Rngs(0)),
    "batch": lambda n: n.BatchNorm(6, rngs=n.Rngs(0)),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_values_and_gradients_are_those_of_flax_to_the_last_digit(draw, kind):
    x, scale, bias = draw(64, 7, 6), draw(6), draw(6)

    def values(n):
        norm = LAYERS[kind](n)
        norm.scale[...] = scale
        if getattr(norm, "bias", None) is not None:
            norm.bias[...] = bias
        loss = lambda norm, x: (norm(x) ** 3).sum()
        return jax.tree.leaves((norm(x), n.value_and_grad(loss, argnums=(0, 1))(norm, x), n.state(norm)))

    jax.tree.map(np.testing.assert_array_equal, values(sonde.nnx), values(fnnx))


@pytest.mark.parametrize("kind", NORMS)
def test_the_program_is_the_same_when_nobody_looks(draw, kind):
    assert "sonde" not in str(jax.make_jaxpr(NORMS[kind])(draw(4, 3, 6), draw(6), draw(6)))


@pytest.mark.parametrize(
    "call, words",
    [
        (
            lambda d: ops.layer_norm(d(2, 5), d(3), d(3)),
            "the inputs have the wrong number of features: expected 3 (the size of `scale`) along axes (1,), "
            "got float32[2,5].",
        ),
        (
            lambda d: ops.batch_norm(d(2, 5), d(3), d(3), d(3), d(3), use_running_average=False),
            "`inputs` has the wrong number of features: expected 3 along axis 1, got 5 in float32[2,5].",
        ),
        (
            lambda d: ops.layer_norm(d(2, 5), mask=d(3, 5) > 0),
            "`mask` has the wrong shape: expected one that broadcasts to (2, 5) (the shape of the inputs), "
            "got bool[3,5].",
        ),
        (
            lambda d: ops.group_norm(d(2, 6), num_groups=4),
            "6 features of float32[2,6] cannot be split into num_groups=4 groups of equal size.",
        ),
        (
            lambda d: ops.group_norm(d(2, 5, 6), num_groups=2, reduction_axes=(1,)),
            "reduction_axes=(1,) must include the last axis of float32[2,5,6], which holds the features.",
        ),
        (
            lambda d: ops.instance_norm(d(2, 5, 6), feature_axes=(0, -1)),
            "feature_axes=(0, -1) contain axis 0 of float32[2,5,6], which is the batch: choose other axes.",
        ),
        (
            lambda d: ops.layer_norm(d(2, 6), reduction_axes=3),
            "axis 3 is out of range for an input with 2 axes.",
        ),
        (
            lambda d: ops.group_count(6, num_groups=3, group_size=2),
            "give exactly one of `num_groups` and `group_size`, got 3 and 2. `num_groups` is 32 by default: with "
            "`group_size`, pass num_groups=None.",
        ),
        (
            lambda d: ops.group_count(6, num_groups=None, group_size=4),
            "6 features cannot be split into groups of group_size=4.",
        ),
    ],
)
def test_what_does_not_fit_is_said(draw, call, words):
    with pytest.raises(LayerInputError) as caught:
        call(draw)
    assert str(caught.value) == words
