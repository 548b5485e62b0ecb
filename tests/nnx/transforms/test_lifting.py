"""What all transforms have in common: aliases, updates, failures, options."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from sonde import nnx
from sonde.errors import TraceContextError


class Tied(nnx.Module):
    def __init__(self, value=1.0):
        self.alpha = nnx.Param(jnp.asarray(value))
        self.beta = self.alpha


class Count(nnx.Module):
    def __init__(self, value=0.0):
        self.n = nnx.Variable(jnp.asarray(value))


def mesh():
    return jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))


def _custom(f, m, **k):
    g = nnx.custom_vjp(lambda m, x: f(m) + x, nondiff_argnums=(0,), **k)
    g.defvjp(lambda m, x: (f(m) + x, None), lambda m, r, g: (g,))
    return g(m, 0.0)


# Every transform as a function of a function, a Module and options; `v` says that the Module must be mapped over.
TRANSFORMS = {
    "jit": ("s", lambda f, m, **k: nnx.jit(f, **k)(m)),
    "grad": ("s", lambda f, m, **k: nnx.grad(f, **k)(m)),
    "value_and_grad": ("s", lambda f, m, **k: nnx.value_and_grad(f, **k)(m)[0]),
    "vjp": ("s", lambda f, m, **k: nnx.vjp(f, m, **k)[0]),
    "jvp": ("s", lambda f, m, **k: nnx.jvp(f, (m,), (nnx.clone(m, graph=True),), **k)[0]),
    "custom_vjp": ("s", _custom),
    "remat": ("s", lambda f, m, **k: nnx.remat(f, **k)(m)),
    "vmap": ("v", lambda f, m, **k: nnx.vmap(f, **k)(m)),
    "pmap": ("v", lambda f, m, **k: nnx.pmap(f, **k)(m)),
    "scan": ("v", lambda f, m, **k: nnx.scan(lambda m: f(m), in_axes=0, out_axes=0, **k)(m)),
    "while_loop": (
        "s",
        lambda f, m, **k: nnx.while_loop(lambda v: v[1] < 1, lambda v: (v[0], v[1] + 1, f(v[0])), (m, 0, 0.0), **k)[2],
    ),
    "fori_loop": ("s", lambda f, m, **k: nnx.fori_loop(0, 1, lambda i, v: (v[0], f(v[0])), (m, 0.0), **k)[1]),
    "cond": ("s", lambda f, m, **k: nnx.cond(True, f, lambda m: 0.0, m, **k)),
    "switch": ("s", lambda f, m, **k: nnx.switch(1, [lambda m: 0.0, f], m, **k)),
    "checkify": ("s", lambda f, m, **k: nnx.checkify(f, **k)(m)[1]),
    "shard_map": (
        "v",
        lambda f, m, **k: nnx.shard_map(lambda m: f(m)[None], mesh=mesh(), in_specs=(P("d"),), out_specs=P("d"), **k)(
            m
        ),
    ),
    "transform_metadata": (
        "s",
        lambda f, m, graph=None: nnx.transform_metadata(f, partition="p", in_axes=None, graph=graph)(m),
    ),
    "eval_shape": ("s", lambda f, m, **k: nnx.eval_shape(f, m, **k)),
    "make_jaxpr": ("s", lambda f, m, **k: nnx.make_jaxpr(f, **k)(m)),
}
PURE = ("eval_shape", "make_jaxpr")


def value(kind):
    return 1.0 if kind == "s" else np.ones(2, np.float32)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_an_alias_is_an_error_in_tree_mode(name):
    kind, call = TRANSFORMS[name]
    model = Tied(value(kind))
    with pytest.raises(ValueError) as info:
        call(lambda m: jnp.sum(m.alpha[...]), model, graph=False)
    text = str(info.value)
    assert "Duplicate Param found at paths" in text
    assert "/alpha\n" in text and "/beta\n" in text
    assert f"nnx.{name}(..., graph=True)" in text


@pytest.mark.parametrize("name", TRANSFORMS)
def test_sharing_works_in_graph_mode(name):
    kind, call = TRANSFORMS[name]
    model, seen = Tied(value(kind)), []

    def f(m):
        seen.append(m.alpha is m.beta)
        m.alpha[...] = m.beta[...] * 3
        return jnp.sum(m.beta[...])

    call(f, model, graph=True)
    assert all(seen) and seen
    assert model.alpha is model.beta
    np.testing.assert_array_equal(model.beta[...], value(kind) * (1 if name in PURE else 3))


@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_updates_reach_the_same_variable(name, graph):
    kind, call = TRANSFORMS[name]
    model = Count(value(kind))
    variable = model.n

    def f(m):
        m.n[...] += 1
        return jnp.sum(m.n[...]) * 10

    call(f, model, graph=graph)
    assert model.n is variable
    assert isinstance(variable[...], jax.Array) and not isinstance(variable[...], jax.core.Tracer)
    np.testing.assert_array_equal(variable[...], value(kind) + (0 if name in PURE else 1))


@pytest.mark.parametrize("name", [n for n in TRANSFORMS if n != "shard_map"])  # places them on the mesh, as in Flax
def test_what_does_not_change_stays_the_same_array(name):
    kind, call = TRANSFORMS[name]
    model = Count(value(kind))
    array = model.n[...]
    call(lambda m: jnp.sum(m.n[...]), model)
    assert model.n[...] is array


@pytest.mark.parametrize("name", [n for n in TRANSFORMS if n != "transform_metadata"])  # works on the arguments
def test_a_call_that_fails_changes_nothing(name):
    kind, call = TRANSFORMS[name]
    model = Count(value(kind))
    array, attributes = model.n[...], dict(vars(model))

    def f(m):
        m.n[...] += 1
        m.other = 3
        raise ZeroDivisionError("inside")

    with pytest.raises(ZeroDivisionError, match="inside"):
        call(f, model)
    assert model.n[...] is array
    assert vars(model) == attributes


RETURNING = ("jit", "vjp", "jvp", "remat", "vmap", "pmap", "scan", "checkify", *PURE)


@pytest.mark.parametrize("name", RETURNING)
def test_returning_an_input_variable_without_graph_updates_is_an_error(name):
    kind, call = TRANSFORMS[name]
    with pytest.raises(ValueError) as info:
        call(lambda m: m.n, Count(value(kind)), graph_updates=False)
    text = str(info.value)
    assert f"nnx.{name} returns a Variable of its arguments" in text
    assert "/n\n" in text and "\n  - out" in text and "nnx.clone" in text and "graph_updates=True" in text


def test_branches_may_not_return_input_variables_without_graph_updates():
    with pytest.raises(ValueError, match=r"operands\[0\]/n\n  - out\n"):
        nnx.cond(True, lambda m: m.n, lambda m: m.n, Count(), graph_updates=False)


def test_alias_across_arguments_names_both():
    model = Count()
    with pytest.raises(ValueError, match=r"args\[0\]/n\n  - kwargs\['b'\]/n"):
        nnx.jit(lambda a, b: a.n + b.n, graph=False)(model, b=model)
    with pytest.raises(ValueError, match=r"args\[0\]\['x'\]/n\n  - args\[0\]\['y'\]/n"):
        nnx.jit(lambda a: a["x"].n, graph=False)({"x": model, "y": model})


def test_equal_arrays_are_no_aliases():
    array = jnp.ones(2)
    model = nnx.Dict(a=nnx.Param(array), b=nnx.Param(array))
    np.testing.assert_array_equal(nnx.jit(lambda m: m.a + m.b, graph=False)(model), [2, 2])


def test_the_mode_is_that_of_the_definition():
    with nnx.set_graph_mode(False):
        f = nnx.jit(lambda m: m.alpha + m.beta)
    with pytest.raises(ValueError, match="Duplicate"):
        f(Tied())


@pytest.mark.parametrize("name", ["jit", "vmap", "grad", "value_and_grad", "remat", "scan", "vjp", "jvp", "custom_vjp"])
def test_as_a_decorator_with_options(name):
    options = {"scan": {"in_axes": 0, "out_axes": 0}}.get(name, {})
    decorated = getattr(nnx, name)(graph=True, **options)(lambda x: x)
    assert callable(decorated)


@pytest.mark.parametrize("name", ["jit", "vmap", "grad", "remat", "scan", "checkify", "shard_map", "custom_vjp"])
def test_names_and_documentation_are_kept(name):
    def model_step(x):
        """Doc."""
        return x

    options = {"shard_map": {"mesh": mesh(), "in_specs": P(), "out_specs": P()}}.get(name, {})
    wrapped = getattr(nnx, name)(model_step, **options)
    assert wrapped.__name__ == "model_step"
    assert wrapped.__doc__ == "Doc."
    assert inspect.unwrap(wrapped) is model_step


@pytest.mark.parametrize("name", ["jit", "vmap", "grad", "remat", "scan", "custom_vjp"])
def test_bound_methods_are_refused(name):
    class M(nnx.Module):
        def step(self, x):
            return x

    with pytest.raises(ValueError, match=rf"nnx.{name} does not support bound methods, got M.step of an instance"):
        getattr(nnx, name)(M().step)


def test_variables_of_another_level_are_refused():
    model = Count()

    @jax.jit
    def outer(x):
        nnx.jit(lambda m, x: m.n.set_value(x))(model, x)
        return x

    with pytest.raises(TraceContextError):
        outer(1.0)
    assert float(model.n) == 0.0


def test_variables_that_hold_pytrees():
    model = nnx.Dict(v=nnx.Variable({"a": jnp.zeros(2), "b": [jnp.ones(2)]}))

    def f(m):
        m.v.value["a"] = m.v.value["b"][0] * 2  # in place
        return m.v.value["a"]

    for transform in (nnx.jit, nnx.vmap, nnx.remat):
        model.v.value = {"a": jnp.zeros(2), "b": [jnp.ones(2)]}
        transform(f)(model)
        np.testing.assert_array_equal(model.v.value["a"], [2, 2])


def test_a_variable_may_become_none():
    model = nnx.Dict(v=nnx.Variable(jnp.ones(2)))
    nnx.jit(lambda m: m.v.set_value(None))(model)
    assert model.v.get_value() is None


def test_nested_transforms():
    model = Count(np.ones(3, np.float32))

    @nnx.jit
    def outer(m, x):
        def loss(m, x):
            def one(m, x):
                m.n[...] += 1
                return m.n * x

            return nnx.vmap(nnx.remat(one), in_axes=(0, None))(m, x).sum()

        return nnx.value_and_grad(loss, argnums=1)(m, x)

    value, grad = outer(model, 2.0)
    assert (float(value), float(grad)) == (12.0, 6.0)
    np.testing.assert_array_equal(model.n[...], [2, 2, 2])


def test_no_tracers_leak():
    model = Count()

    def f(m):
        m.n[...] += 1
        return m.n * 2

    with jax.checking_leaks():
        for name in ("jit", "remat", "cond", "fori_loop", "value_and_grad"):
            TRANSFORMS[name][1](f, model)
    assert float(model.n) == 5.0


@pytest.mark.parametrize("updates", [True, False])
@pytest.mark.parametrize("verb", ["jit", "vmap", "scan", "remat", "eval_shape"])
def test_captured_variables_are_not_returned(same, verb, updates):
    def run(nnx):
        model = nnx.Dict(a=nnx.Variable(jnp.arange(4.0)))
        if verb == "eval_shape":
            return nnx.eval_shape(lambda x: model, 1.0, graph_updates=updates) is model
        returning = (lambda c, x: (c, model)) if verb == "scan" else lambda x: model
        args = (0.0, jnp.zeros(4)) if verb == "scan" else (jnp.zeros(4),)
        return getattr(nnx, verb)(returning, graph_updates=updates)(*args) is model

    same(run)
