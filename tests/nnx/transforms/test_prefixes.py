import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from sonde import nnx

X = jnp.arange(3.0)


def model():
    return nnx.Dict(w=nnx.Param(X), mean=nnx.BatchStat(jnp.array(2.0)), sub=nnx.Dict(b=nnx.Param(X * 10)))


def mesh():
    return jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))


def test_state_axes_look_at_the_path_below_the_object():
    axes = nnx.StateAxes({nnx.PathContains("sub"): 0, nnx.Param: None, ...: None})
    out = nnx.vmap(lambda d: d["m"].sub.b + d["m"].w[0], in_axes=({"m": axes},))({"m": model()})
    np.testing.assert_array_equal(out, [0, 10, 20])


def test_state_axes_are_values():
    a, b = nnx.StateAxes({nnx.Param: 0, ...: None}), nnx.StateAxes([(nnx.Param, 0), (..., None)])
    assert a == b and hash(a) == hash(b) and a != nnx.StateAxes({nnx.Param: 1})
    assert a.axes == (0, None) and a.filters == (nnx.Param, ...) and list(a.items()) == [(nnx.Param, 0), (..., None)]
    assert repr(nnx.StateAxes({...: 0})) == "StateAxes({Ellipsis: 0})"
    assert nnx.StateSharding({...: P()}).shardings == (P(),)


def test_a_variable_without_an_axis():
    with pytest.raises(ValueError) as info:
        nnx.vmap(lambda m: m.w, in_axes=(nnx.StateAxes({nnx.Param: 0}),))(model())
    assert "No axis found for path=('mean',) (BatchStat)" in str(info.value)
    assert "Add `...: axis` for the rest" in str(info.value)


def test_axes_that_do_not_fit():
    with pytest.raises(
        ValueError, match=r"in_axes of nnx.vmap, \(0, 0\), do not fit: there are 1 entries \(0\), not 2"
    ):
        nnx.vmap(lambda m: m.w, in_axes=(0, 0))(model())
    with pytest.raises(ValueError, match=r"do not fit at args\[0\]: there are 2 entries \(a, b\), not 1 \(a\)"):
        nnx.vmap(lambda d: d["a"], in_axes=({"a": 0},))({"a": X, "b": X})
    with pytest.raises(ValueError, match=r"out_axes of nnx.vmap, .* do not fit at out"):
        nnx.vmap(lambda x: (x, x), out_axes=(0, 0, 0))(X)


def test_one_variable_with_two_axes():
    m = model()
    with pytest.raises(ValueError) as info:
        nnx.vmap(lambda a, b: a.w, in_axes=(nnx.StateAxes({nnx.Param: 0, ...: None}), None))(m, m)
    text = str(info.value)
    assert "Inconsistent aliasing detected: nnx.vmap was given a Param twice, with different values for in_axes" in text
    assert "args[0]/sub/b: 0" in text and "args[1]/sub/b: None" in text


def test_one_variable_with_the_same_axis_twice():
    m = model()
    axes = nnx.StateAxes({nnx.Param: 0, ...: None})
    out = nnx.vmap(lambda a, b: (a.w + b.w, jnp.array(a is b)), in_axes=(axes, axes))(m, m)
    np.testing.assert_array_equal(out[0], 2 * X)
    assert out[1].all()


def test_prefixes_made_by_prefix_in_both_modes():
    for graph in (True, False):
        m = model()
        axes = nnx.prefix(m, {nnx.Param: 0, ...: None}, graph=graph)
        np.testing.assert_array_equal(nnx.vmap(lambda m: m.w * m.mean, in_axes=(axes,), graph=graph)(m), 2 * X)


def test_axes_in_the_form_of_a_module():
    axes = nnx.prefix(model(), {nnx.Param: 0, ...: None}, graph=False)
    with pytest.raises(ValueError, match=r"do not fit at args\[0\]: there are 2 entries \(mean, w\), not 3"):
        nnx.vmap(lambda m: m.w, in_axes=(axes,), graph=False)(nnx.Dict(w=nnx.Param(X), mean=nnx.Param(X)))


def test_out_axes_of_several_kinds():
    def f(x):
        return nnx.Dict(a=nnx.Param(jnp.stack([x, x + 1])), b=nnx.BatchStat(jnp.array(7.0))), x

    made, x = nnx.vmap(f, out_axes=(nnx.StateAxes({nnx.Param: 1, ...: None}), 0))(X)
    np.testing.assert_array_equal(made.a[...], [X, X + 1])
    assert made.b.shape == () and x.shape == (3,)


def test_shardings_by_filter():
    sharded, copied = NamedSharding(mesh(), P("d")), NamedSharding(mesh(), P())
    m = nnx.Dict(w=nnx.Param(jnp.arange(4.0)), mean=nnx.BatchStat(jnp.array(2.0)))

    def f(m, x):
        m.w[...] *= x
        m.mean[...] += 1
        return m.w + m.mean

    spec = nnx.StateSharding({nnx.Param: sharded, ...: copied})
    out = nnx.jit(f, in_shardings=(spec, None), out_shardings=copied)(m, 2.0)
    assert (m.w[...].sharding.spec, m.mean[...].sharding.spec, out.sharding.spec) == (P("d"), P(), P())
    np.testing.assert_array_equal(out, [3, 5, 7, 9])


def test_shardings_of_donated_and_nested_arguments():
    sharded = NamedSharding(mesh(), P("d"))
    m = nnx.Dict(w=nnx.Param(jnp.arange(4.0)))
    f = nnx.jit(lambda d, x: d["m"].w * x["s"], in_shardings=({"m": sharded, "k": None}, None), donate_argnums=0)
    for _ in range(2):
        out = f({"m": m, "k": 1.0}, {"s": 2.0})
        np.testing.assert_array_equal(out, [0, 2, 4, 6])
    assert m.w[...].sharding.spec == P("d")


def test_too_many_shardings():
    with pytest.raises(ValueError, match="nnx.jit was given 2 in_shardings and 1 positional arguments"):
        nnx.jit(lambda m: m.w, in_shardings=(None, None))(model())


def test_a_variable_is_no_prefix():
    with pytest.raises(ValueError, match="nnx.vmap: `in_axes` holds a Param, a Variable, which cannot be a prefix"):
        nnx.vmap(lambda x: x, in_axes=(nnx.Param(0),))(X)


def test_a_module_is_no_prefix_with_graph_updates():
    with pytest.raises(ValueError, match="`in_axes` holds a Dict, an object that cannot be a prefix"):
        nnx.vmap(lambda m: m.w, in_axes=(model(),))(model())
