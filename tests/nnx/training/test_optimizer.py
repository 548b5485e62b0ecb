"""Optimizers against Flax."""

from __future__ import annotations

import flax.nnx as fnnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sonde import nnx


def groups(params):
    return jax.tree.map(lambda p: "matrix" if p.ndim > 1 else "vector", params)


TRANSFORMATIONS = {
    "sgd": lambda: optax.sgd(0.1),
    "momentum": lambda: optax.sgd(0.1, momentum=0.9),
    "adam": lambda: optax.adam(0.1),
    "clipped adamw": lambda: optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(0.1)),
    "schedule": lambda: optax.adam(optax.exponential_decay(0.1, 2, 0.5)),
    "hyperparameters": lambda: optax.inject_hyperparams(optax.adam)(learning_rate=0.1),
    "masked": lambda: optax.masked(optax.adam(0.1), lambda params: jax.tree.map(lambda p: p.ndim > 1, params)),
    "two groups": lambda: optax.multi_transform({"matrix": optax.adam(0.1), "vector": optax.sgd(0.3, 0.9)}, groups),
    "every second": lambda: optax.MultiSteps(optax.adam(0.1), 2).gradient_transformation(),
}


def make(where):
    class Model(where.Module):
        def __init__(self, rngs):
            self.linear = where.Linear(3, 4, rngs=rngs)
            self.norm = where.BatchNorm(4, rngs=rngs)

        def __call__(self, x):
            return self.norm(self.linear(x), use_running_average=True)

    return Model(where.Rngs(0))


def gradients(where, model, x, wrt):
    graph, params, rest = where.split(model, wrt, ...)
    return jax.grad(lambda p: (where.merge(graph, p, rest)(x) ** 2).sum())(params)


def leaves(where, tree):
    return {path: (type(x).__name__, np.asarray(x.get_value())) for path, x in where.to_flat_state(where.state(tree))}


def assert_same(ours, theirs):
    assert list(ours) == list(theirs)
    for path, (kind, value) in theirs.items():
        assert ours[path][0] == kind
        assert ours[path][1].dtype == value.dtype
        np.testing.assert_allclose(ours[path][1], value, rtol=2e-6, atol=1e-7, err_msg=str(path))


@pytest.mark.every(3)
@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_three_steps_equal_flax(name):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)), jnp.float32)
    results = []
    for where in (nnx, fnnx):
        model = make(where)
        optimizer = where.Optimizer(model, TRANSFORMATIONS[name](), wrt=where.Param)
        started = leaves(where, optimizer)
        for _ in range(3):
            updates = optimizer.update(model, gradients(where, model, x, where.Param))
        results.append((started, leaves(where, model), leaves(where, optimizer), jax.tree.leaves(updates)))
    (started, model, optimizer, updates), theirs = results
    assert_same(started, theirs[0])
    assert_same(model, theirs[1])
    assert_same(optimizer, theirs[2])
    for a, b in zip(updates, theirs[3], strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-7)


def test_only_what_is_chosen_is_updated():
    model = make(nnx)
    chosen = nnx.All(nnx.Param, nnx.PathContains("linear"))
    optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=chosen)
    before = leaves(nnx, model)
    optimizer.update(model, gradients(nnx, model, jnp.ones((5, 3)), chosen))
    after = leaves(nnx, model)
    changed = {path for path in before if not np.array_equal(before[path][1], after[path][1])}
    assert changed == {("linear", "kernel"), ("linear", "bias")}


def test_more_arguments_reach_the_transformation():
    model = make(nnx)
    optimizer = nnx.Optimizer(model, optax.contrib.reduce_on_plateau(patience=1), wrt=nnx.Param)
    grads = gradients(nnx, model, jnp.ones((5, 3)), nnx.Param)
    optimizer.update(model, grads, value=jnp.float32(1.0))
    assert optimizer.step.get_value() == 1


def test_a_step_inside_jit():
    model = make(nnx)
    optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
    graph, state = nnx.split((model, optimizer))

    @jax.jit
    def step(state, x):
        model, optimizer = nnx.merge(graph, state)
        optimizer.update(model, gradients(nnx, model, x, nnx.Param))
        return nnx.state((model, optimizer))

    new = step(state, jnp.ones((5, 3)))
    optimizer.update(model, gradients(nnx, model, jnp.ones((5, 3)), nnx.Param))
    assert_same(leaves(nnx, new), leaves(nnx, (model, optimizer)))


def test_moments_keep_the_metadata_of_their_parameters():
    model = nnx.Linear(4, 4, kernel_metadata={"role": "mixing"}, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
    moments = [x for path, x in nnx.to_flat_state(nnx.state(optimizer)) if path[-1] == "kernel"]
    assert len(moments) == 2
    assert all(isinstance(x, nnx.OptVariable) and x.role == "mixing" for x in moments)


def test_model_and_optimizer_equals_flax():
    x = jnp.ones((5, 3))
    results = []
    for where in (nnx, fnnx):
        model = make(where)
        both = where.ModelAndOptimizer(model, optax.adam(0.1))
        assert both.model is model
        both.update(gradients(where, model, x, where.Param))
        results.append(leaves(where, both))
    assert_same(*results)


def test_what_does_not_fit_is_said():
    model = make(nnx)
    with pytest.raises(TypeError, match="Missing required argument `wrt`"):
        nnx.Optimizer(model, optax.sgd(0.1))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    grads = gradients(nnx, model, jnp.ones((5, 3)), nnx.Param)
    with pytest.raises(TypeError, match="Missing required argument `grads`"):
        optimizer.update(grads)
    with pytest.raises(AttributeError, match="has no attribute 'model'"):
        _ = optimizer.model
    with pytest.raises(ValueError) as caught:
        optimizer.update(model, nnx.state(nnx.Dict(linear=nnx.Linear(3, 5, rngs=nnx.Rngs(0)))))
    assert str(caught.value) == (
        "The gradients given to Optimizer.update do not fit the parameters chosen by wrt="
        f"{nnx.Param}: norm/bias is missing, norm/scale is missing, linear/bias has shape (5,), expected (4,), "
        "linear/kernel has shape (3, 5), expected (3, 4). Take them with respect to the same Variables, "
        "nnx.grad(loss, argnums=nnx.DiffState(0, wrt))."
    )


def test_optimizers_are_generic():
    assert nnx.Optimizer[nnx.Linear] and nnx.ModelAndOptimizer[nnx.Linear] and nnx.TrainState[nnx.Linear]


def test_gradients_of_more_than_is_updated():
    class Trained(nnx.Param):
        pass

    model = nnx.Dict(a=nnx.Param(jnp.ones(2)), b=Trained(jnp.ones(2)))
    optimizer = nnx.Optimizer(model, optax.sgd(0.5), wrt=Trained)
    optimizer.update(model, nnx.grad(lambda m: (m.a * m.b).sum())(model))
    assert model.a[...].tolist() == [1.0, 1.0] and model.b[...].tolist() == [0.5, 0.5]


def test_a_line_search_in_jit():
    model = nnx.Dict(w=nnx.Param(jnp.array([3.0, -2.0])))
    optimizer = nnx.Optimizer(model, optax.lbfgs(), wrt=nnx.Param)
    graphdef = nnx.graphdef(model)

    def loss(m):
        return ((m.w - 1.0) ** 2).sum()

    @nnx.jit
    def step(model, optimizer):
        value, grads = nnx.value_and_grad(loss)(model)
        optimizer.update(model, grads, grad=grads, value=value, value_fn=lambda s: loss(nnx.merge(graphdef, s)))
        return value

    values = [float(step(model, optimizer)) for _ in range(3)]
    assert values[0] == 13.0 and values[-1] < 1e-6
