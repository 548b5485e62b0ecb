"""Normalization layers against Flax; the arithmetic has more cases in tests/ops."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from flax import nnx as fnnx
from sonde import nnx
from sonde.errors import LayerInputError

DTYPES = [{}, {"dtype": jnp.bfloat16}, {"param_dtype": jnp.bfloat16}]


def random_init(n):
    return {"scale_init": n.initializers.normal(), "bias_init": n.initializers.normal()}


@pytest.mark.every(3)
@pytest.mark.parametrize("options", [*DTYPES, {"momentum": 0.5, "axis": 1}, {"use_fast_variance": False}], ids=str)
@pytest.mark.parametrize(
    "use_running_average, use_bias, use_scale",
    [(True, True, True), (False, True, True), (False, False, True), (False, True, False)],
)
def test_batch_norm(same, draw, options, use_running_average, use_bias, use_scale):
    x = draw(4, 3, 3) + 1

    def make(n, rngs):
        return n.BatchNorm(
            3,
            use_running_average=use_running_average,
            use_bias=use_bias,
            use_scale=use_scale,
            rngs=rngs,
            **random_init(n),
            **options,
        )

    same(make, lambda n, m: m(x))


def test_batch_norm_twice_with_a_mask_and_a_setting_of_the_call(same, draw):
    x, mask = draw(4, 5, 3), draw(4, 5, 1) > 0

    def call(n, m):
        return m(x, mask=mask), m(2 * x, use_running_average=False), m(x, use_running_average=True)

    same(lambda n, rngs: n.BatchNorm(3, momentum=0.7, rngs=rngs), call)


@pytest.mark.every(5)
@pytest.mark.parametrize("options", [*DTYPES, {"use_bias": False}, {"use_scale": False}, {"epsilon": 0.1}], ids=str)
@pytest.mark.parametrize("masked", [True, False])
def test_layer_norm(same, draw, options, masked):
    x, mask = draw(4, 5, 6), draw(4, 5, 6) > -0.5 if masked else None
    same(lambda n, rngs: n.LayerNorm(6, rngs=rngs, **random_init(n), **options), lambda n, m: m(x, mask=mask))


def test_layer_norm_over_other_axes(same, draw):
    x = draw(4, 5, 6)
    same(lambda n, rngs: n.LayerNorm(6, reduction_axes=(1, 2), rngs=rngs), lambda n, m: m(x))


@pytest.mark.parametrize("options", [*DTYPES, {"use_scale": False}], ids=str)
def test_rms_norm(same, draw, options):
    x, mask = draw(4, 5, 6), draw(4, 5, 6) > -0.5

    def make(n, rngs):
        return n.RMSNorm(6, scale_init=n.initializers.normal(), rngs=rngs, **options)

    same(make, lambda n, m: (m(x), m(x, mask)))


@pytest.mark.parametrize("options", [{"num_groups": 3}, {"num_groups": None, "group_size": 3}], ids=str)
@pytest.mark.parametrize("dtypes", DTYPES, ids=str)
def test_group_norm(same, draw, options, dtypes):
    x = draw(4, 5, 6)
    same(lambda n, rngs: n.GroupNorm(6, rngs=rngs, **random_init(n), **options, **dtypes), lambda n, m: m(x))


@pytest.mark.parametrize("options", [*DTYPES, {"use_fast_variance": False}], ids=str)
def test_instance_norm(same, draw, options):
    x = draw(4, 5, 6)
    same(lambda n, rngs: n.InstanceNorm(6, rngs=rngs, **random_init(n), **options), lambda n, m: m(x))


def test_train_and_eval_switch_batch_norm(draw):
    layer = nnx.BatchNorm(3, rngs=nnx.Rngs(0))
    layer.eval()
    layer(draw(4, 3))
    assert jnp.all(layer.mean[...] == 0)
    layer.train()
    layer(draw(4, 3))
    assert jnp.any(layer.mean[...] != 0)
    assert nnx.view(layer, use_running_average=True).use_running_average is True


@pytest.mark.parametrize(
    "call, words",
    [
        (
            lambda d: nnx.BatchNorm(3, rngs=nnx.Rngs(0))(d(2, 5)),
            "BatchNorm: `inputs` has the wrong number of features: expected 3 along axis 1, got 5 in float32[2,5].",
        ),
        (
            lambda d: nnx.LayerNorm(3, rngs=nnx.Rngs(0))(d(2, 5)),
            "LayerNorm: the inputs have the wrong number of features: expected 3 (the size of `scale`) along axes "
            "(1,), got float32[2,5].",
        ),
        (
            lambda d: nnx.LayerNorm(5, rngs=nnx.Rngs(0))(d(2, 5), mask=d(3, 5) > 0),
            "LayerNorm: `mask` has the wrong shape: expected one that broadcasts to (2, 5) (the shape of the "
            "inputs), got bool[3,5].",
        ),
        (
            lambda d: nnx.GroupNorm(6, 4, rngs=nnx.Rngs(0)),
            "GroupNorm: 6 features cannot be split into num_groups=4 groups of equal size.",
        ),
        (
            lambda d: nnx.GroupNorm(6, 3, 2, rngs=nnx.Rngs(0)),
            "GroupNorm: give exactly one of `num_groups` and `group_size`, got 3 and 2. `num_groups` is 32 by "
            "default: with `group_size`, pass num_groups=None.",
        ),
        (
            lambda d: nnx.SpectralNorm(nnx.Conv(3, 4, 3, rngs=nnx.Rngs(0)), error_on_non_matrix=True, rngs=nnx.Rngs(0))(
                d(2, 5, 3)
            ),
            "SpectralNorm: with error_on_non_matrix=True every kernel must have two axes, but kernel of the wrapped "
            "Conv is float32[3,3,4].",
        ),
    ],
)
def test_what_does_not_fit_is_said(draw, call, words):
    with pytest.raises(LayerInputError) as caught:
        call(draw)
    assert str(caught.value) == words


def test_an_unsaid_setting_is_said(draw):
    layer = nnx.BatchNorm(3, use_running_average=None, rngs=nnx.Rngs(0))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="BatchNorm: `use_running_average` is not set.*, nnx.view"):
        layer(draw(2, 3))


@pytest.mark.parametrize("name", ["BatchNorm", "LayerNorm", "RMSNorm", "GroupNorm", "InstanceNorm"])
def test_attributes_are_those_of_flax_in_their_order(name):
    """`repr` shows them in this order."""
    options = {"num_groups": 3} if name == "GroupNorm" else {}
    ours, theirs = (getattr(face, name)(6, **options, rngs=face.Rngs(0)) for face in (nnx, fnnx))
    assert [*vars(ours)] == [attribute for attribute in vars(theirs) if not attribute.startswith("_")]
