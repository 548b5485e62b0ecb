import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sonde import nnx


class Cell(nnx.Module):
    def __init__(self, n=None):
        self.w = nnx.Param(jnp.array(2.0) if n is None else jnp.arange(1.0, n + 1))
        self.count = nnx.Variable(jnp.array(0) if n is None else jnp.zeros(n, int))
        self.flag = 1

    def __call__(self, x):
        self.count[...] += 1
        return x * self.w


def counting(f):
    """A function, and the list of its calls."""
    calls = []

    def g(*args):
        calls.append(1)
        return f(*args)

    return g, calls


def test_the_function_runs_once():
    cell = Cell()
    body, calls = counting(lambda i, v: (v[0], v[0](v[1])))
    nnx.fori_loop(0, 3, body, (cell, 1.0))
    assert len(calls) == 1
    body, calls = counting(lambda v: (v[0], v[0](v[1])))
    nnx.while_loop(lambda v: v[1] < 100, body, (cell, jnp.array(1.0)))
    assert len(calls) == 1
    body, calls = counting(lambda c, x: (c * x, c))
    nnx.scan(body)(jnp.array(1.0), jnp.ones(3))
    assert len(calls) == 1
    branch, calls = counting(lambda m: m(1.0))
    nnx.cond(True, branch, lambda m: m.w * 1, cell)
    assert len(calls) == 1
    inner, calls = counting(lambda m: m(1.0))
    nnx.cond(True, lambda m: nnx.cond(True, inner, lambda m: m.w * 1, m), lambda m: m.w * 1, cell)
    assert len(calls) == 1


def test_only_what_changes_goes_round():
    cell = Cell()
    loop = jax.make_jaxpr(lambda x: nnx.fori_loop(0, 3, lambda i, v: (v[0], v[1] * v[0].w), (nnx.clone(cell), x))[1])
    (scan,) = [eqn for eqn in loop(1.0).jaxpr.eqns if eqn.primitive.name in ("scan", "while")]
    assert len(scan.outvars) == 2  # the index and x


def test_gradients_through_loops():
    cell = Cell()
    grads = nnx.grad(lambda m, x: nnx.fori_loop(0, 3, lambda i, v: (v[0], v[0].w * v[1]), (m, x))[1], wrt=nnx.Param)
    assert float(grads(cell, 1.0)["w"]) == 12.0
    cells = Cell(3)
    scanned = lambda m, x: nnx.scan(lambda x, m: m(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(x, m)
    np.testing.assert_allclose(nnx.grad(scanned, wrt=nnx.Param)(cells, 1.0)["w"], [6, 3, 2])
    np.testing.assert_array_equal(cells.count[...], [1, 1, 1])


def test_a_carry_keeps_its_form():
    with pytest.raises(ValueError) as info:
        nnx.while_loop(lambda v: True, lambda v: {"a": v["a"], "b": 1}, {"a": Cell()})
    assert "the value that goes round must keep its form" in str(info.value)
    assert "init_val had the entries a and has a, b" in str(info.value)
    with pytest.raises(TypeError, match="the static attributes flag of init_val changed"):
        nnx.fori_loop(0, 2, lambda i, m: (setattr(m, "flag", 2), m)[1], Cell())
    with pytest.raises(ValueError, match=r"args\[0\]/0 was a Cell and is an array"):
        nnx.scan(lambda c, x: ((1.0, c[1]), x))((Cell(), 0.0), jnp.ones(2))


def test_a_carry_keeps_its_variables():
    with pytest.raises(ValueError) as info:
        nnx.while_loop(lambda m: True, lambda m: Cell(), Cell())
    assert "nnx.while_loop: every iteration must hand on the Variables it was given" in str(info.value)
    assert "at init_val/count" in str(info.value)


def test_the_order_of_keys_does_not_matter():
    out = nnx.fori_loop(0, 2, lambda i, d: {"b": d["b"] + 1, "a": d["a"]}, {"a": 1, "b": 2})
    assert out == {"a": 1, "b": 4}


def test_shared_variables_go_round_as_one():
    v = nnx.Variable(jnp.array(0))
    model = nnx.Dict(a=v, b=v)

    def body(i, m):
        m.a[...] += 1
        m.b[...] += 1
        return m

    out = nnx.fori_loop(0, 3, body, model)
    assert int(v) == 6 and out.a is v and out.b is v


def test_scan_axes_of_variables():
    model = nnx.Dict(w=nnx.Param(jnp.arange(6.0).reshape(2, 3)))

    def f(m):
        m.w[...] *= 10
        return m.w.sum()

    out = nnx.scan(f, in_axes=(1,), out_axes=0)(model)
    np.testing.assert_array_equal(out, [30, 50, 70])
    np.testing.assert_array_equal(model.w[...], 10 * jnp.arange(6.0).reshape(2, 3))


def test_scan_with_random_keys():
    @nnx.split_rngs(splits=3)
    def draw(rngs):
        return nnx.scan(lambda r: jax.random.uniform(r()), in_axes=0, out_axes=0)(rngs)

    values = draw(nnx.Rngs(0))
    assert values.shape == (3,) and len(set(map(float, values))) == 3


def test_scan_reverse_and_stacked_updates_in_true_order():
    cells = Cell(3)

    def f(x, m):
        m.count[...] = x.astype(int)
        return x + 1

    nnx.scan(f, in_axes=(nnx.Carry, 0), out_axes=nnx.Carry, reverse=True)(jnp.array(0.0), cells)
    np.testing.assert_array_equal(cells.count[...], [2, 1, 0])


def test_scan_wants_as_many_outputs_as_axes():
    with pytest.raises(ValueError, match=r"wants a tuple of 2 outputs, got 3 values"):
        nnx.scan(lambda c, x: (c, x, x))(0.0, jnp.ones(3))


def test_scan_names_axes():
    def f(c, v):
        return c, nnx.Param(v[...], out_sharding=v.out_sharding, eager_sharding=False)

    v = nnx.Param(jnp.ones((3, 2)), out_sharding=("layers", "x"), eager_sharding=False)
    _, out = nnx.scan(f, transform_metadata={nnx.PARTITION_NAME: "layers"}, in_axes=(None, 0), out_axes=(0, 0))(0.0, v)
    assert out.out_sharding == ("layers", "x") and v.out_sharding == ("layers", "x")


def test_branches_that_change_different_variables():
    model = nnx.Dict(a=nnx.Variable(jnp.array(0)), b=nnx.Variable(jnp.array(0)), c=nnx.Variable(jnp.array(0)))
    untouched = model.c[...]

    @nnx.jit
    def f(m, i):
        def set_a(m):
            m.a[...] = 10

        def set_b(m):
            m.b[...] = 20

        nnx.switch(i, [set_a, set_b, lambda m: None], m)

    for i in (2, 0, 1):
        f(model, i)
        assert (int(model.a), int(model.b)) == {2: (0, 0), 0: (10, 0), 1: (10, 20)}[i]
    assert model.c[...] is untouched


def test_branches_of_different_forms():
    with pytest.raises(TypeError) as info:
        nnx.cond(True, lambda: {"a": jnp.ones(2)}, lambda: 1.0)
    text = str(info.value)
    assert "nnx.cond: all branches must return the same form of output, and these differ" in text
    assert "true_fun returns {'a': 'float32[2]'}, false_fun returns" in text


def test_vmapped_branches():
    cells = Cell(3)
    f = nnx.vmap(lambda m, p: nnx.cond(p, lambda m: m(1.0), lambda m: m.w * 0, m))
    np.testing.assert_array_equal(f(cells, jnp.array([True, False, True])), [1, 0, 3])
    np.testing.assert_array_equal(cells.count[...], [1, 0, 1])


def test_variables_as_predicate_and_index():
    assert int(nnx.cond(nnx.Variable(jnp.array(True)), lambda: 1, lambda: 2)) == 1
    assert int(nnx.switch(nnx.Variable(jnp.array(1)), [lambda: 1, lambda: 2])) == 2
