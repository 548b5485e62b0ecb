"""What a function would compute, without computing it: the same as in Flax and JAX."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType

from sonde import nnx


def test_shapes_of_what_is_returned():
    out = nnx.eval_shape(lambda x: {"y": x @ x.T, "n": 3}, jax.ShapeDtypeStruct((10**6, 10**6), jnp.bfloat16))
    assert out["y"] == jax.ShapeDtypeStruct((10**6, 10**6), jnp.bfloat16)


def test_a_model_that_is_never_made(same):
    def use(n):
        model = n.eval_shape(lambda: n.Linear(3, 4, rngs=n.Rngs(0)))
        return type(model), {path: (type(v), v.shape, str(v.dtype)) for path, v in n.to_flat_state(n.state(model))}

    same(use)


def test_arguments_are_left_alone(same):
    """The function changes a copy: the caller sees no new value and no new attribute."""

    def use(n):
        model = n.Dict(count=n.Variable(jnp.array(0)))

        def f(model):
            model.count[...] += 1
            model.new = n.Param(jnp.ones(2))
            return model.count[...] * 2.0

        out = n.eval_shape(f, model)
        return out.shape, str(out.dtype), int(model.count[...]), sorted(n.state(model))

    same(use)


def test_a_jaxpr_of_the_leaves():
    model = nnx.Dict(w=nnx.Param(jnp.ones(3)), b=nnx.Param(jnp.array(1.0)))
    jaxpr = nnx.make_jaxpr(lambda m, x: m.w * x + m.b)(model, jnp.ones(3))
    assert [v.aval.shape for v in jaxpr.jaxpr.invars] == [(), (3,), (3,)]  # b, w, x
    plain = jax.make_jaxpr(lambda b, w, x: w * x + b)(jnp.array(1.0), jnp.ones(3), jnp.ones(3))
    assert str(jaxpr) == str(plain)


def test_static_arguments_are_not_traced():
    @nnx.make_jaxpr(static_argnums=-1)
    def jaxpr_of(w, n):
        return w[...] * n if isinstance(n, int) else None

    (variable,) = jaxpr_of(nnx.Param(2.0), 3).jaxpr.invars
    assert variable.aval.shape == ()


@pytest.mark.parametrize("verb", ["eval_shape"])
def test_bound_methods_are_refused(verb):
    with pytest.raises(ValueError, match="does not support bound methods, got Linear.__call__"):
        getattr(nnx, verb)(nnx.Linear(2, 2, rngs=nnx.Rngs(0)).__call__, jnp.ones(2))


@pytest.mark.parametrize("options", [{}, {"graph_updates": False}, {"graph": False}])
def test_outputs_may_share_where_arguments_may_not(same, options):
    def model(nnx):
        m = nnx.Dict(a=nnx.Dict(w=nnx.Param(jnp.ones(2))))
        m.b, m.v = m.a, m.a.w
        return m

    def output(nnx):
        out = nnx.eval_shape(lambda: model(nnx), **options)
        return out.a is out.b, out.v is out.a.w

    assert (same(output) == (True, True)) is ("graph" not in options)
    given = same(lambda nnx: nnx.eval_shape(lambda m: m.a.w[...], model(nnx), **options).shape)
    assert given == (("raised", "ValueError") if options else (2,))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("updates", [True, False])
def test_shapes_have_their_shardings_on_a_mesh(same, kind, updates):
    mesh = jax.make_mesh((2,), ("x",), axis_types=(kind,), devices=jax.devices()[:2])

    def shapes(nnx):
        def make(**options):
            named = nnx.Param(jnp.ones((4, 2)), out_sharding=("x", None), **options)
            return nnx.Dict(named=named, plain=nnx.Param(jnp.ones(2)), bare=nnx.data(jnp.ones(3)))

        with jax.set_mesh(mesh):
            there = nnx.eval_shape(make, graph_updates=updates)
            product = nnx.eval_shape(lambda model: model.named[...].T, make(), graph_updates=updates)
        given = nnx.eval_shape(lambda: make(mesh=mesh), graph_updates=updates)
        return [str(x) for x in jax.tree.leaves((nnx.state(there), product, nnx.state(given)))]

    same(shapes)
