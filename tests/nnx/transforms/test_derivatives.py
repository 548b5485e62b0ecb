import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sonde import nnx


class Model(nnx.Module):
    """A model that could not be differentiated as a whole: it has a random key and a counter."""

    def __init__(self):
        self.w = nnx.Param(jnp.array(3.0))
        self.frozen = nnx.Param(jnp.array(2.0), tag="frozen")
        self.mean = nnx.BatchStat(jnp.array(0.0))
        self.rngs = nnx.Rngs(0)

    def __call__(self, x):
        self.mean[...] = x
        self.rngs()
        return self.w * self.frozen * x


def test_wrt_leaves_out_what_has_no_gradient():
    model = Model()
    value, grads = nnx.value_and_grad(lambda m, x: m(x), wrt=nnx.Param)(model, 5.0)
    assert isinstance(grads, nnx.State)
    assert nnx.to_pure_dict(grads) == {"frozen": 15.0, "w": 10.0}
    assert type(grads["w"]) is nnx.Param and grads["frozen"].tag == "frozen"
    assert (float(value), float(model.mean), int(model.rngs.default.count)) == (30.0, 5.0, 1)


@pytest.mark.parametrize("wrt, names", [("frozen", ["frozen"]), (nnx.Not("frozen"), ["w"]), (nnx.BatchStat, ["mean"])])
def test_wrt_takes_any_filter(wrt, names):
    model = nnx.Dict(**{k: v for k, v in vars(Model()).items() if k != "rngs"})
    wrt = nnx.All(nnx.Param, wrt) if isinstance(wrt, nnx.Not) else wrt
    grads = nnx.grad(lambda m: m.w * m.frozen + m.mean, wrt=wrt)(model)
    assert sorted(grads) == names


def test_wrt_in_containers_and_with_arrays():
    grads = nnx.grad(lambda d, x: d["m"](d["x"]) * x, argnums=(0, 1), wrt=nnx.Param)({"m": Model(), "x": 5.0}, 2.0)
    assert nnx.to_pure_dict(grads[0]["m"]) == {"frozen": 30.0, "w": 20.0}
    assert (float(grads[0]["x"]), float(grads[1])) == (12.0, 30.0)


def test_without_wrt_the_error_says_where_and_what_to_do():
    with pytest.raises(TypeError) as info:
        nnx.grad(lambda m: m(1.0), graph_updates=False)(Model())
    assert "args[0]/rngs/default/count, a RngCount, is of type uint32" in str(info.value)
    assert "nnx.grad(..., wrt=nnx.Param)" in str(info.value)


def test_allow_int():
    model = nnx.Dict(w=nnx.Param(1.0), n=nnx.Variable(jnp.array(1)))
    grads = nnx.grad(lambda m: m.w[...] * 2.0, allow_int=True, wrt=...)(model)
    assert float(grads.w) == 2.0 and grads.n[...].dtype == jax.dtypes.float0


def test_a_shared_variable_has_one_gradient():
    tied = nnx.Param(jnp.array(3.0))
    model = nnx.Dict(a=tied, b=tied, c=nnx.Param(jnp.array(1.0)))
    grads = nnx.grad(lambda m: m.a * m.b + m.c)(model)
    assert nnx.to_pure_dict(grads) == {"a": 6.0, "c": 1.0}
    assert len(jax.tree.leaves(grads)) == 2
    assert isinstance(nnx.grad(lambda m: m.c[...], graph_updates=False)(nnx.Dict(c=tied)), nnx.Dict)


def test_a_shared_variable_is_differentiated_everywhere_or_nowhere():
    m = nnx.Dict(w=nnx.Param(jnp.array(3.0)))
    with pytest.raises(ValueError, match="Inconsistent aliasing detected: nnx.grad was given a Param twice") as info:
        nnx.grad(lambda a, b: a.w * b.w)(m, m)
    assert "args[0]/w: differentiated" in str(info.value) and "args[1]/w: not among argnums" in str(info.value)
    first, second = nnx.grad(lambda a, b: a.w * b.w, argnums=(0, 1))(m, m)
    assert nnx.to_pure_dict(first) == {"w": 6.0} and not nnx.to_pure_dict(second)


def test_argnums():
    f = lambda a, b: a.w * b.w
    a, b = nnx.Dict(w=nnx.Param(2.0)), nnx.Dict(w=nnx.Param(5.0))
    assert [float(g.w) for g in nnx.grad(f, argnums=(1, 0))(a, b)] == [2.0, 5.0]
    assert float(nnx.grad(f, argnums=-1)(a, b).w) == 2.0
    with pytest.raises(ValueError, match="argument 3, but was called with 2 positional arguments"):
        nnx.grad(f, argnums=3)(a, b)
    with pytest.raises(ValueError, match="an argument is repeated"):
        nnx.grad(f, argnums=(0, 0))(a, b)


def test_has_aux_wants_a_pair():
    with pytest.raises(
        TypeError, match=r"nnx.grad\(has_aux=True\) needs a function that returns \(output, aux\), got 3 v"
    ):
        nnx.grad(lambda x: (x, x, x), has_aux=True)(1.0)


def test_aux_may_be_a_new_module():
    grads, aux = nnx.grad(lambda w: (w * 2, nnx.Dict(seen=nnx.Param(w * 3))), has_aux=True)(1.0)
    assert (float(grads), float(aux.seen)) == (2.0, 3.0)
    assert not isinstance(aux.seen[...], jax.core.Tracer)


def test_vjp_of_a_function_that_makes_a_module():
    out, pull = nnx.vjp(lambda x: nnx.Dict(a=nnx.Param(x * 2), b=nnx.Param(x * 3)), 1.0)
    assert isinstance(out, nnx.Dict)
    assert float(pull(nnx.Dict(a=nnx.Param(1.0), b=nnx.Param(10.0)))[0]) == 32.0
    with pytest.raises(ValueError, match="has 1 leaves, but the output of the function has 2"):
        pull(1.0)


def test_jvp_wants_tangents_of_the_form_of_the_primals():
    with pytest.raises(ValueError, match="primals with 1 leaves but tangents with 2"):
        nnx.jvp(lambda m: m.a, (nnx.Dict(a=nnx.Param(1.0)),), (nnx.Dict(a=nnx.Param(1.0), b=nnx.Param(1.0)),))


def test_second_derivatives():
    model = nnx.Dict(w=nnx.Param(jnp.array(2.0)))
    second = nnx.grad(lambda m: nnx.grad(lambda m: m.w**3)(m).w[...])(model)
    np.testing.assert_allclose(second.w, 12.0)


@pytest.mark.parametrize("verb", ["grad", "value_and_grad", "vjp"])
def test_an_option_that_jax_no_longer_has(verb):
    arguments = (jnp.sin, 1.0) if verb == "vjp" else (jnp.sin,)
    with pytest.raises(ValueError, match=rf"nnx.{verb}\(reduce_axes=\('d',\)\): JAX no longer has this option"):
        getattr(nnx, verb)(*arguments, reduce_axes=("d",))
