"""Modules of linen and nnx inside each other: the same numbers and variables as Flax's bridge."""

from __future__ import annotations

import flax.linen
import flax.nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sonde
import sonde.flax.bridge
import sonde.flax.bridge.for_flax
import sonde.linen
import sonde.nnx
from sonde.errors import ScopeParamNotFoundError

FACES = {"flax": (flax.nnx, flax.linen), "sonde": (sonde.nnx, sonde.linen)}
X = jnp.linspace(-1, 1, 8).reshape(2, 4)
KEYS = {"params": jax.random.key(0), "dropout": jax.random.key(1)}


def compared(use):
    """What a function of both faces returns, which must be the same for both libraries."""
    results = {}
    for name, (nnx, linen) in FACES.items():
        results[name] = jax.tree.map(np.asarray, use(nnx, linen))
    jax.tree.map(np.testing.assert_array_equal, results["flax"], results["sonde"])
    return results["sonde"]


def block(linen):
    class Block(linen.Module):
        @linen.compact
        def __call__(self, x, train=False):
            x = linen.Dense(3)(x)
            x = linen.BatchNorm(use_running_average=not train)(x)
            self.sow("intermediates", "h", x)
            return linen.Dropout(0.5, deterministic=not train)(x)

        def double(self, x):
            return 2 * x

    return Block()


def layer(nnx):
    class Layer(nnx.Module):
        def __init__(self, features, *, rngs):
            self.linear = nnx.Linear(4, features, rngs=rngs)
            self.drop = nnx.Dropout(0.5, rngs=rngs)
            self.calls = nnx.Cache(jnp.zeros(()))

        def __call__(self, x):
            self.calls[...] += 1
            return self.drop(self.linear(x))

        def double(self, x):
            return 2 * x

    return Layer


def pure(nnx, model, *filters):
    return nnx.to_pure_dict(nnx.state(model, *filters))


def test_linen_inside_nnx():
    def use(nnx, linen):
        model = nnx.bridge.ToNNX(block(linen), rngs=nnx.Rngs(0, dropout=1)).lazy_init(X)
        evaluated = model(X)
        trained = [model(X, train=True, mutable=["batch_stats", "intermediates"]) for _ in range(2)]
        kinds = {path: type(v).__name__ for path, v in nnx.to_flat_state(nnx.state(model))}
        assert kinds["Dense_0", "kernel"] == "Param" and kinds["BatchNorm_0", "mean"] == "BatchStat"
        return evaluated, trained, pure(nnx, model, nnx.Param), pure(nnx, model, nnx.BatchStat), model.double(X)

    compared(use)


def test_linen_deep_inside_nnx_is_initialized_by_a_call():
    def use(nnx, linen):
        class Outer(nnx.Module):
            def __init__(self, rngs):
                self.inside = nnx.bridge.ToNNX(linen.Dense(3), rngs=rngs)
                self.bias = nnx.Param(jnp.ones(3))

            def __call__(self, x):
                return self.inside(x) + self.bias

        model = Outer(nnx.Rngs(0))
        assert nnx.bridge.lazy_init(model, X) is model
        return nnx.jit(lambda m, x: m(x))(model, X), pure(nnx, model, nnx.Param)

    compared(use)


def test_sharding_moves_along():
    def use(nnx, linen):
        kernel_init = linen.with_partitioning(linen.initializers.lecun_normal(), (None, "out"))
        bias_init = linen.with_logical_partitioning(linen.initializers.ones, ("wide",), rules=(("wide", "out"),))
        mesh = jax.make_mesh((1,), ("out",), axis_types=(jax.sharding.AxisType.Auto,))
        with jax.set_mesh(mesh):
            dense = linen.Dense(3, kernel_init=kernel_init, bias_init=bias_init)
            model = nnx.bridge.ToNNX(dense, rngs=nnx.Rngs(0)).lazy_init(X)
            specs = nnx.get_partition_spec(nnx.state(model, nnx.Param))
            assert (tuple(specs["kernel"].get_value()), tuple(specs["bias"].get_value())) == ((None, "out"), ("out",))

            init = nnx.with_partitioning(nnx.initializers.lecun_normal(), (None, "out"))
            back = nnx.bridge.to_linen(nnx.Linear, 4, 3, kernel_init=init)
            variables = back.init(jax.random.key(0), X)
            assert isinstance(variables["params"]["kernel"], nnx.bridge.NNXMeta)
            assert tuple(linen.get_partition_spec(variables)["params"]["kernel"]) == (None, "out")
            return model(X), back.apply(variables, X), linen.unbox(variables)

    compared(use)


def test_nnx_inside_linen():
    def use(nnx, linen):
        class Outer(linen.Module):
            @linen.compact
            def __call__(self, x):
                return linen.Dense(2)(nnx.bridge.to_linen(layer(nnx), 3, name="inside")(x))

        model = Outer()
        variables = model.init(KEYS, X)
        keys = {"dropout": jax.random.key(2)}
        y, changed = model.apply(variables, X, rngs=keys, mutable=["cache"])
        assert changed["cache"]["inside"]["calls"] == 1
        grads = jax.grad(lambda p: model.apply({**variables, "params": p}, X, rngs=keys).sum())(variables["params"])
        return variables, y, grads

    compared(use)


def test_methods_of_a_module_inside_linen():
    def use(nnx, linen):
        class Tied(linen.Module):
            def setup(self):
                self.table = nnx.bridge.to_linen(nnx.Embed, 5, 3)

            def __call__(self, ids):
                return self.table.attend(self.table(ids))

        model = Tied()
        y, variables = model.init_with_output(jax.random.key(0), jnp.arange(4))
        direct = nnx.bridge.to_linen(nnx.Embed, 5, 3)
        only = {"params": variables["params"]["table"]}
        return y, direct.apply(only, jnp.ones((1, 3)), nnx_method="attend"), variables

    compared(use)


def test_lifted_transforms_of_nnx_inside_linen():
    def use(nnx, linen):
        mapped = linen.vmap(nnx.bridge.ToLinen, variable_axes={"params": 0}, split_rngs={"params": True})
        model = mapped(nnx.Linear, args=(4, 3))
        y, variables = model.init_with_output(jax.random.key(0), X)
        return y, variables

    compared(use)


def test_a_missing_parameter_is_an_error():
    """Flax makes a new one, with seed 0."""
    with pytest.raises(ScopeParamNotFoundError, match="Linear: the variables have no parameter kernel"):
        sonde.nnx.bridge.to_linen(sonde.nnx.Linear, 4, 3).apply({"params": {"bias": jnp.zeros(3)}}, X)


def test_functional():
    def use(nnx, linen):
        linear = nnx.bridge.functional(nnx.Linear)(4, 3)
        state = linear.init(rngs=nnx.Rngs(0))
        return linear.apply(state)(X)[0], nnx.to_pure_dict(state)

    compared(use)


def test_captures_see_both_sides():
    nnx, linen = FACES["sonde"]

    class Outer(nnx.Module):
        def __init__(self):
            self.inside = nnx.bridge.ToNNX(block(linen), rngs=nnx.Rngs(0))

        def __call__(self, x):
            return self.inside(x)

    model = nnx.bridge.lazy_init(Outer(), X)
    y, records = sonde.capture(model, "inside/h", grads=False)(X)
    np.testing.assert_array_equal(records["inside/h"].value, y)


# --------------------------------------------------------------------------------------------------------------------
# Across libraries: every pair of faces, one of Sonde and one of Flax
# --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outer", ["sonde", "flax"])
@pytest.mark.parametrize("inner", ["nnx", "linen"])
def test_a_module_of_the_other_library_inside_nnx(outer, inner):
    guest_nnx, guest_linen = FACES["flax" if outer == "sonde" else "sonde"]
    host = FACES[outer][0]
    wrap = sonde.flax.bridge.ToNNX if outer == "sonde" else sonde.flax.bridge.for_flax.ToNNX
    reference = flax.nnx.Rngs(0, dropout=1)
    if inner == "linen":
        model = wrap(block(guest_linen), rngs=host.Rngs(0, dropout=1)).lazy_init(X)
        expected = flax.nnx.bridge.ToNNX(block(flax.linen), rngs=reference).lazy_init(X)
        call = lambda m: m(X, train=True, mutable=["batch_stats"])
    else:
        model = wrap(layer(guest_nnx)(3, rngs=guest_nnx.Rngs(0, dropout=1)))
        expected = layer(flax.nnx)(3, rngs=reference)
        call = lambda m: m(X)
    for _ in range(2):  # counters and statistics go on; compiled as a whole, a program may round once and not twice
        np.testing.assert_allclose(host.jit(call)(model), call(expected), rtol=4 * np.finfo(np.float32).eps)
    changed = host.BatchStat if inner == "linen" else host.Cache
    theirs = flax.nnx.BatchStat if inner == "linen" else flax.nnx.Cache
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6)
    jax.tree.map(close, pure(host, model, changed), pure(flax.nnx, expected, theirs))
    grads = host.grad(lambda m: call(m).sum(), argnums=host.DiffState(0, host.Param))(model)
    assert jax.tree.map(jnp.shape, host.to_pure_dict(host.state(grads))) == jax.tree.map(
        jnp.shape, pure(flax.nnx, expected, flax.nnx.Param)
    )


@pytest.mark.parametrize("outer", ["sonde", "flax"])
@pytest.mark.parametrize("inner", ["nnx", "linen"])
def test_a_module_of_the_other_library_inside_linen(outer, inner):
    guest_nnx, guest_linen = FACES["flax" if outer == "sonde" else "sonde"]
    wrap = sonde.flax.bridge.ToLinen if outer == "sonde" else sonde.flax.bridge.for_flax.ToLinen
    host = FACES[outer][1]

    def outside(linen, wrap, nnx, inner_linen):
        class Outer(linen.Module):
            @linen.compact
            def __call__(self, x):
                inside = (
                    wrap(layer(nnx), args=(3,), name="in") if inner == "nnx" else wrap(block(inner_linen), name="in")
                )
                return linen.Dense(2)(inside(x))

        return Outer()

    model = outside(host, wrap, guest_nnx, guest_linen)
    variables = model.init(KEYS, X)
    keys = {"dropout": jax.random.key(2)}
    y, changed = model.apply(variables, X, rngs=keys, mutable=["cache", "intermediates"])
    if inner == "nnx":  # Flax has this one itself
        expected = outside(flax.linen, flax.nnx.bridge.ToLinen, flax.nnx, flax.linen)
        jax.tree.map(np.testing.assert_array_equal, dict(variables), dict(expected.init(KEYS, X)))
        np.testing.assert_array_equal(y, expected.apply(variables, X, rngs=keys))
        assert changed["cache"]["in"]["calls"] == 1
    else:
        alone = block(guest_linen)
        inside = {name: tree["in"] for name, tree in variables.items()}
        h = alone.apply(inside, X)
        dense = variables["params"]["Dense_0"]
        np.testing.assert_allclose(y, h @ dense["kernel"] + dense["bias"], rtol=1e-6)
        np.testing.assert_array_equal(changed["intermediates"]["in"]["h"][0], h)


def test_no_module():
    with pytest.raises(TypeError, match="is not a module"):
        sonde.flax.bridge.ToNNX(3)


def test_a_call_leaves_the_state_alone_that_the_module_was_merged_from():
    def use(nnx, linen):
        model = nnx.bridge.ToNNX(linen.BatchNorm(use_running_average=False), rngs=nnx.Rngs(0)).lazy_init(X)
        graphdef, state = nnx.split(model)
        merged = nnx.merge(graphdef, state)
        merged(X + 1, mutable=["batch_stats"])
        nnx.jit(lambda m, x: m(x, mutable=["batch_stats"]))(model, X)
        return state["mean"].get_value(), merged.mean.get_value(), model.mean.get_value()

    before, after, jitted = compared(use)
    assert not np.array_equal(before, after) and not np.array_equal(before, jitted)


def test_attributes_and_collections_are_turned_into_each_other():
    variables = {"params": {"a": X, "inner": {"w": X}}, "batch_stats": {"inner": {"mean": X}}}

    def use(nnx, linen):
        functions = nnx.bridge.variables
        attributes = functions.linen_vars_to_nnx_attrs(variables)
        kinds = functions.sort_variable_types([nnx.Variable, nnx.Param, nnx.LoRAParam])
        assert [kind.__name__ for kind in kinds] == ["LoRAParam", "Param", "Variable"]
        assert functions.is_vanilla_variable(nnx.Param(1.0)) and not functions.is_vanilla_variable(nnx.Param(1.0, k=1))
        assert isinstance(attributes["inner"]["mean"], nnx.BatchStat)
        return functions.nnx_attrs_to_linen_vars(attributes)

    jax.tree.map(np.testing.assert_array_equal, compared(use), variables)
