"""Every layer against its namesake in flax.linen: parameters, outputs, changed variables, gradients."""

import functools

import flax.linen as flax_nn
import jax
import jax.numpy as jnp
import pytest
from tests.linen.against_flax import assert_same, assert_same_runs, check

from sonde import linen as nn
from sonde.errors import LayerInputError

X = jax.random.normal(jax.random.key(7), (2, 6, 4))
IMAGE = jax.random.normal(jax.random.key(8), (2, 7, 6, 4))
MASK = jnp.arange(6) < 4
NORMAL = jax.nn.initializers.normal()

LINEAR = {
    "dense": lambda nn: nn.Dense(5),
    "dense without bias": lambda nn: nn.Dense(5, use_bias=False),
    "dense bfloat16": lambda nn: nn.Dense(5, dtype=jnp.bfloat16),
    "dense half params": lambda nn: nn.Dense(5, param_dtype=jnp.float16),
    "dense initializers": lambda nn: nn.Dense(5, kernel_init=nn.initializers.orthogonal(), bias_init=NORMAL),
    "dense with own product": lambda nn: nn.Dense(5, dot_general_cls=lambda: functools.partial(jax.lax.dot_general)),
    "general": lambda nn: nn.DenseGeneral((3, 2), axis=(-2, -1), bias_init=NORMAL),
    "general axis 1": lambda nn: nn.DenseGeneral(3, axis=1),
    "general batch": lambda nn: nn.DenseGeneral((3, 2), axis=-1, batch_dims=(0,), bias_init=NORMAL),
    "general batches": lambda nn: nn.DenseGeneral(3, axis=-1, batch_dims=(0, 1)),
    "einsum": lambda nn: nn.Einsum((4, 3, 2), "abc,cde->abde", bias_init=NORMAL),
    "einsum dots": lambda nn: nn.Einsum((3, 4), "...c,dc->...d", bias_init=NORMAL),
    "general unsorted axes": lambda nn: nn.DenseGeneral((3, 2), axis=(2, -2), bias_init=NORMAL),
    "einsum kernel dots": lambda nn: nn.Einsum((4, 5, 6), "n...b,bc...->c...n", bias_init=NORMAL),
    "einsum kernel has fewer dots": lambda nn: nn.Einsum((6, 4, 3), "...b,...bc->...c", bias_init=NORMAL),
    "einsum without bias": lambda nn: nn.Einsum((3, 4), "abc,dc->adb", use_bias=False),
}

CONV = {
    "conv": lambda nn: nn.Conv(5, (3, 3)),
    "conv one axis": lambda nn: nn.Conv(5, (3,), strides=2, padding="CAUSAL"),
    "conv one number": lambda nn: nn.Conv(5, 3),
    "local one number": lambda nn: nn.ConvLocal(5, 3, bias_init=NORMAL),
    "conv strides": lambda nn: nn.Conv(5, (3, 2), strides=(2, 1), padding="VALID"),
    "conv circular": lambda nn: nn.Conv(5, (3, 2), padding="CIRCULAR"),
    "conv reflect": lambda nn: nn.Conv(5, (3, 2), padding="REFLECT"),
    "conv padding numbers": lambda nn: nn.Conv(5, (3, 2), padding=((1, 2), (0, 1))),
    "conv groups": lambda nn: nn.Conv(6, (3, 3), feature_group_count=2, use_bias=False),
    "conv dilated": lambda nn: nn.Conv(5, (2, 2), kernel_dilation=2, dtype=jnp.bfloat16),
    "conv input dilated": lambda nn: nn.Conv(5, (2, 2), input_dilation=2, padding=1),
    "conv masked": lambda nn: nn.Conv(
        5, (3, 3), mask=(jnp.arange(180) % 3 > 0).reshape(3, 3, 4, 5).astype(jnp.float32)
    ),
    "local": lambda nn: nn.ConvLocal(5, (3, 3), bias_init=NORMAL),
    "local strides": lambda nn: nn.ConvLocal(5, (3, 2), strides=2, padding="VALID"),
    "transposed": lambda nn: nn.ConvTranspose(5, (3, 3), strides=(2, 2)),
    "transposed valid": lambda nn: nn.ConvTranspose(5, (3, 2), strides=(2, 1), padding="VALID", use_bias=False),
    "transposed circular": lambda nn: nn.ConvTranspose(5, (3, 3), strides=(2, 2), padding="CIRCULAR"),
    "transposed kernel": lambda nn: nn.ConvTranspose(5, (3, 3), strides=(2, 2), transpose_kernel=True),
}

NORM = {
    "layer": lambda nn: nn.LayerNorm(),
    "layer axes": lambda nn: nn.LayerNorm(
        reduction_axes=(1, 2), feature_axes=(1, 2), scale_init=NORMAL, bias_init=NORMAL
    ),
    "layer axes backwards": lambda nn: nn.LayerNorm(
        reduction_axes=(-1, 1), feature_axes=(-1, 1), scale_init=NORMAL, bias_init=NORMAL
    ),
    "layer without": lambda nn: nn.LayerNorm(use_bias=False, use_scale=False, use_fast_variance=False),
    "layer half": lambda nn: nn.LayerNorm(dtype=jnp.bfloat16, epsilon=1e-3),
    "rms": lambda nn: nn.RMSNorm(scale_init=NORMAL),
    "rms half": lambda nn: nn.RMSNorm(dtype=jnp.float16, force_float32_reductions=False),
    "group": lambda nn: nn.GroupNorm(num_groups=2, scale_init=NORMAL),
    "group size": lambda nn: nn.GroupNorm(num_groups=None, group_size=2),
    "group axes": lambda nn: nn.GroupNorm(num_groups=2, reduction_axes=(-2, -1)),
    "instance": lambda nn: nn.InstanceNorm(bias_init=NORMAL),
    "instance axes": lambda nn: nn.InstanceNorm(feature_axes=(1,)),
    "batch": lambda nn: nn.BatchNorm(use_running_average=False, momentum=0.8, scale_init=NORMAL),
    "batch running": lambda nn: nn.BatchNorm(use_running_average=True),
    "batch axis": lambda nn: nn.BatchNorm(use_running_average=False, axis=1, dtype=jnp.bfloat16),
    "batch axes": lambda nn: nn.BatchNorm(use_running_average=False, axis=(1, 2), use_bias=False, use_scale=False),
    "batch axes backwards": lambda nn: nn.BatchNorm(use_running_average=False, axis=(-1, 1), scale_init=NORMAL),
    "weight axes backwards": lambda nn: nn.WeightNorm(
        nn.DenseGeneral((2, 3)), feature_axes=(-1, -2), scale_init=NORMAL
    ),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("build", LINEAR.values(), ids=LINEAR)
def test_linear(build):
    check(build, X)


@pytest.mark.every(2)
@pytest.mark.parametrize("build", CONV.values(), ids=CONV)
def test_conv(build):
    size = build(nn).kernel_size
    check(build, X if isinstance(size, int) or len(size) == 1 else IMAGE)


def test_conv_takes_any_number_of_batch_axes():
    check(lambda nn: nn.Conv(5, (3, 3)), IMAGE[0])
    check(lambda nn: nn.Conv(5, (3, 3)), IMAGE[None])


@pytest.mark.every(2)
@pytest.mark.parametrize("build", NORM.values(), ids=NORM)
def test_norm(build):
    check(build, X)


@pytest.mark.parametrize("name", ["layer", "rms", "group", "instance", "batch"])
def test_norm_with_a_mask(name):
    check(NORM[name], X, mask=jnp.broadcast_to(MASK[None, :, None], X.shape))


def test_gradients_through_running_averages():
    def run(nn):
        layer = nn.BatchNorm(use_running_average=False, momentum=0.8)
        variables = layer.init(jax.random.key(0), X)
        loss = lambda x: sum(leaf.sum() for leaf in jax.tree.leaves(layer.apply(variables, x, mutable=True)[1]))
        return jax.grad(loss)(X)

    assert_same_runs(run)


def test_batch_norm_over_a_mapped_axis():
    def run(nn):
        norm = nn.BatchNorm(use_running_average=False, axis_name="batch")
        variables = norm.init(jax.random.key(0), X[0])
        return jax.vmap(
            lambda x: norm.apply(variables, x, mutable=["batch_stats"]), axis_name="batch", out_axes=(0, None)
        )(X)

    assert_same_runs(run)


def test_batch_norm_asks_for_its_mode_once():
    with pytest.raises(
        ValueError, match="'use_running_average' must be given either to the constructor or to the call"
    ):
        nn.BatchNorm().init(jax.random.key(0), X)


def test_embed():
    numbers = jnp.array([[0, 3], [2, 1]])
    check(lambda nn: nn.Embed(5, 4), numbers)
    check(lambda nn: nn.Embed(5, 4, dtype=jnp.bfloat16), numbers)

    def attend(nn):
        embed = nn.Embed(5, 4)
        return embed.apply(embed.init(jax.random.key(0), numbers), X, method="attend")

    assert_same_runs(attend)


@pytest.mark.parametrize("options", [{}, {"broadcast_dims": (1,)}, {"rate": 0.0}, {"rate": 1.0}])
def test_dropout(options):
    options = {"rate": 0.4, **options}
    check(lambda nn: nn.Dropout(**options, deterministic=False), X)
    check(lambda nn: nn.Dropout(**options), X, deterministic=True)


def test_dropout_with_a_key_of_its_own():
    check(lambda nn: nn.Dropout(0.5, deterministic=False), X, rng=jax.random.key(5))


def spectral(nn, **options):
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.SpectralNorm(nn.Dense(4), n_steps=2)(x, update_stats=True)
            x = nn.SpectralNorm(nn.Dense(4), epsilon=0.3)(x, update_stats=True)
            return nn.SpectralNorm(nn.Conv(3, (2,)))(x, update_stats=False)

    return Model()


def weight(nn):
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.WeightNorm(nn.Dense(4), variable_filter=None)(x)
            x = nn.WeightNorm(nn.Dense(4, name="foo"), feature_axes=None, scale_init=NORMAL)(x)
            boxed = nn.Dense(3, kernel_init=nn.with_partitioning(NORMAL, ("x", "y")))
            return nn.WeightNorm(boxed)(nn.WeightNorm(nn.Dense(3), use_scale=False)(x))

    return Model()


@pytest.mark.parametrize("build", [spectral, weight])
def test_normalized_weights(build):
    check(build, X)


def test_sequential():
    check(lambda nn: nn.Sequential([nn.Dense(5), nn.relu, lambda x: (x, x), lambda x, y: x * y, nn.Dense(2)]), X)
    check(lambda nn: nn.Sequential([lambda x: {"a": x, "b": 1.0}, lambda a, b: a + b, nn.Dense(2)]), X)
    check(lambda nn: nn.Sequential([nn.Dense(5), lambda x: nn.Dense(3, name="q")(x), lambda x: nn.Dense(2)(x)]), X)
    with pytest.raises(ValueError, match="Empty Sequential module Sequential at /"):
        nn.Sequential([]).apply({}, X)
    with pytest.raises(ValueError, match="takes a sequence of layers"):
        nn.Sequential(nn.relu)


def test_prelu_and_batch_apply():
    check(lambda nn: nn.PReLU(), X)
    ours = nn.BatchApply(lambda x: x * jnp.arange(12.0)[:, None])(X)
    assert_same(ours, flax_nn.BatchApply(lambda x: x * jnp.arange(12.0)[:, None])(X))


POOLS = {
    "avg": lambda nn, x: nn.avg_pool(x, (2, 2), strides=(2, 2)),
    "avg same": lambda nn, x: nn.avg_pool(x, (3, 2), padding="SAME", count_include_pad=False),
    "max": lambda nn, x: nn.max_pool(x, (2, 2), strides=(2, 1)),
    "max padded": lambda nn, x: nn.max_pool(x, (2, 2), padding=((1, 0), (0, 1))),
    "pool": lambda nn, x: nn.pool(x, 0.0, jax.lax.add, (2, 2), (1, 1), "VALID"),
}


@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
def test_pooling(pool):
    assert_same_runs(lambda nn: pool(nn, IMAGE))


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "name",
    [
        "celu",
        "elu",
        "gelu",
        "glu",
        "hard_sigmoid",
        "hard_silu",
        "hard_swish",
        "hard_tanh",
        "leaky_relu",
        "log_sigmoid",
        "log_softmax",
        "logsumexp",
        "relu",
        "relu6",
        "selu",
        "sigmoid",
        "silu",
        "soft_sign",
        "softmax",
        "softplus",
        "standardize",
        "normalize",
        "swish",
        "tanh",
    ],
)
def test_activations(name):
    assert_same_runs(lambda nn: getattr(nn, name)(X))


def test_masks():
    tokens = jnp.array([[1, 2, 0], [3, 0, 0]])
    for make in (
        lambda nn: nn.make_causal_mask(tokens),
        lambda nn: nn.make_attention_mask(tokens > 0, tokens > 0),
        lambda nn: nn.combine_masks(nn.make_causal_mask(tokens), nn.make_attention_mask(tokens > 0, tokens > 0)),
    ):
        assert_same_runs(make)


def test_a_wrong_input_is_reported_with_the_path_of_the_layer():
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Sequential([nn.Dense(3, name="head")], name="tail")(x)

    variables = Model().init(jax.random.key(0), X)
    bad = {"params": {"head": {"kernel": jnp.ones((4, 3)), "bias": jnp.ones(3)}}}
    assert jax.tree.structure(variables) == jax.tree.structure(bad)
    with pytest.raises(LayerInputError, match="Embed at /"):
        nn.Embed(3, 4).init(jax.random.key(0), X)
