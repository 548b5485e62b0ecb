"""Layers and optimizers on several devices: parameters, moments and outputs have the requested shardings."""

from __future__ import annotations

import flax.nnx as fnnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from sonde import nnx


def mesh(kind: AxisType):
    return jax.make_mesh((2,), ("model",), axis_types=(kind,))


def make(n, rngs):
    """A block with one kernel split by an initializer, one by metadata, and logical axis names in the last."""

    class Block(n.Module):
        def __init__(self):
            split = n.with_partitioning(n.initializers.lecun_normal(), (None, "model"))
            self.up = n.Linear(4, 8, kernel_init=split, bias_metadata={"out_sharding": ("model",)}, rngs=rngs)
            self.down = n.Linear(8, 4, kernel_metadata={"out_sharding": ("model", None)}, rngs=rngs)
            split = n.with_partitioning(n.initializers.lecun_normal(), (None, "heads", None))
            self.attention = n.MultiHeadAttention(
                2, 4, kernel_init=n.initializers.lecun_normal(), decode=False, rngs=rngs
            )
            self.named = n.LinearGeneral(4, (2, 2), kernel_init=split, rngs=rngs)

        def __call__(self, x):
            return self.attention(self.down(n.relu(self.up(x)))) + self.named(x).reshape(x.shape)

    return Block()


def specs(n, tree):
    return {path: getattr(x.get_value().sharding, "spec", P()) for path, x in n.to_flat_state(n.state(tree))}


def test_training_on_two_devices_equals_flax():
    seen = []
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 6, 4)), jnp.float32)
    for n in (nnx, fnnx):
        with jax.set_mesh(mesh(AxisType.Auto)), n.logical_axis_rules([("heads", "model")]):
            model = make(n, n.Rngs(0))
            optimizer = n.Optimizer(model, optax.adam(0.1), wrt=n.Param)
            start = specs(n, model), specs(n, optimizer)
            graph, state = n.split((model, optimizer))

            @jax.jit
            def step(state, x):
                model, optimizer = n.merge(graph, state)
                definition, params = n.split(model, n.Param)
                loss = lambda params: (n.merge(definition, params)(x) ** 2).mean()
                value, grads = jax.value_and_grad(loss)(params)
                optimizer.update(model, grads)
                return value, n.state((model, optimizer))

            losses = []
            for _ in range(3):
                loss, state = step(state, x)
                losses.append(loss)
            end = {path: np.asarray(leaf.get_value()) for path, leaf in n.to_flat_state(state)}
        seen.append((start, losses, end))
    (ours, losses, end), theirs = seen
    assert ours == theirs[0]
    assert ours[0]["up", "kernel"] == P(None, "model")
    assert ours[0]["up", "bias"] == P("model")
    assert ours[0]["down", "kernel"] == P("model", None)
    assert ours[0]["named", "kernel"] == P(None, "model", None)
    assert ours[1]["opt_state", 0, "mu", "up", "kernel"] == P(None, "model")
    np.testing.assert_allclose(losses, theirs[1], rtol=1e-5)
    assert list(end) == list(theirs[2])
    for path, value in theirs[2].items():
        np.testing.assert_allclose(end[path], value, rtol=1e-4, atol=1e-5, err_msg=str(path))


def test_batch_norm_over_devices_is_that_over_the_whole_batch():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(8, 3)), jnp.float32)
    whole, split = (nnx.BatchNorm(3, axis_name=name, rngs=nnx.Rngs(0)) for name in (None, "model"))
    graph, state = nnx.split(split)

    def run(x):
        model = nnx.merge(graph, jax.tree.map(lambda v: v, state))
        return model(x), model.mean.get_value()

    devices = mesh(AxisType.Auto)
    y, mean = jax.jit(
        jax.shard_map(run, mesh=devices, in_specs=P("model"), out_specs=(P("model"), P()), check_vma=True)
    )(x)
    np.testing.assert_allclose(y, whole(x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(mean, whole.mean.get_value(), rtol=1e-6)


def test_moments_may_be_sharded_in_another_way_than_their_parameter():
    mesh = jax.make_mesh((2,), ("row",), axis_types=(jax.sharding.AxisType.Auto,))
    with jax.set_mesh(mesh):
        model = nnx.Linear(4, 2, rngs=nnx.Rngs(0), kernel_metadata={"optimizer_sharding": ("row", None)})
        optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
        mu = optimizer.opt_state[0].mu["kernel"]
        assert mu[...].sharding.is_equivalent_to(jax.NamedSharding(mesh, jax.P("row", None)), 2)
        assert model.kernel[...].is_fully_replicated
        grads = nnx.grad(lambda m: m(jnp.ones(4)).sum())(model)
        optimizer.update(model, grads)
    assert int(optimizer.step) == 1
