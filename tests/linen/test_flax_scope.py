"""Scopes and filters of `flax.core`, given to modules of `sonde.linen`."""

import flax.core
import flax.linen as flax_nn
import jax
import jax.numpy as jnp
import numpy as np
from tests.linen.against_flax import assert_same

from sonde import linen as nn

KEY = jax.random.key(0)
X = jnp.arange(3.0)


def build(nn, scope):
    class MLP(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(2, name="head")(nn.relu(nn.Dense(4)(x)))

    return MLP(parent=scope)


def test_a_module_on_a_scope_of_flax():
    results = []
    for library in (nn, flax_nn):
        scope = flax.core.Scope({"params": {}}, {"params": KEY}, mutable=["params"])
        y = build(library, scope)(X)
        again = build(library, scope.rewound())(X)
        np.testing.assert_array_equal(y, again)
        results.append((y, flax.core.unfreeze(scope.variables())))
    assert_same(*results)


def test_a_module_below_the_root_of_such_a_scope():
    results = []
    for library in (nn, flax_nn):
        scope = flax.core.Scope({}, {"params": KEY}, mutable=["params"])
        y = build(library, scope.push("model"))(X)
        results.append((y, flax.core.unfreeze(scope.variables())))
    assert list(results[0][1]["params"]) == ["model"]
    assert_same(*results)


def test_filters_of_flax():
    model = nn.BatchNorm(use_running_average=False)
    x = jnp.ones((4, 3))
    variables = model.init(KEY, x)
    _, changed = model.apply(variables, x, mutable=flax.core.DenyList("params"))
    assert list(changed) == ["batch_stats"]
    mapped = nn.vmap(nn.Dense, variable_axes={flax.core.DenyList("cache"): 0}, split_rngs={True: True})
    assert mapped(2).init(KEY, x)["params"]["kernel"].shape == (4, 3, 2)


def test_boxes_of_flax():
    init = flax_nn.with_partitioning(nn.initializers.lecun_normal(), (None, "model"))
    layer = nn.vmap(
        nn.Dense, variable_axes={"params": 0}, split_rngs={"params": True}, metadata_params={nn.PARTITION_NAME: "layer"}
    )(2, kernel_init=init)
    variables = layer.init(KEY, jnp.ones((4, 3)))
    assert variables["params"]["kernel"].names == ("layer", None, "model")
    assert layer.apply(variables, jnp.ones((4, 3))).shape == (4, 2)
