import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.nnx.transforms.cells import Cell

from sonde import nnx


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
    assert "the carry must keep its form" in str(info.value)
    assert "init_val had the entries a and has a, b" in str(info.value)
    with pytest.raises(TypeError, match="the static attributes flag of init_val changed"):
        nnx.fori_loop(0, 2, lambda i, m: (setattr(m, "flag", 2), m)[1], Cell())
    with pytest.raises(ValueError, match=r"args\[0\]/0 was a Cell and is an array"):
        nnx.scan(lambda c, x: ((1.0, c[1]), x))((Cell(), 0.0), jnp.ones(2))


def test_a_carry_keeps_its_variables():
    with pytest.raises(ValueError) as info:
        nnx.while_loop(lambda m: True, lambda m: Cell(), Cell())
    assert "nnx.while_loop: every iteration must return the Variables it was given" in str(info.value)
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


CHANGES = {
    "another Variable": lambda nnx, m: setattr(m, "w", nnx.Param(m.w[...] + 2)),
    "another in a list": lambda nnx, m: m.items.__setitem__(0, nnx.Param(m.items[0] + 1)),
    "two exchanged": lambda nnx, m: exchange(m),
    "another kind": lambda nnx, m: setattr(m, "w", nnx.BatchStat(m.w[...])),
    "one more": lambda nnx, m: setattr(m, "n", nnx.Param(m.w[...])),
}


def exchange(model):
    model.w, model.items[0] = model.items[0], model.w


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("loop", ["fori_loop", "scan", "scan with axes", "while_loop"])
def test_a_variable_in_the_place_of_one_is_a_new_value(same, loop, change):
    def run(nnx):
        class Model(nnx.Module):
            def __init__(self):
                self.w = nnx.Param(jnp.float32(1))
                self.items = nnx.List([nnx.Param(jnp.float32(5))])

        def changed(m):
            CHANGES[change](nnx, m)
            return m

        model = Model()
        if loop == "fori_loop":
            back = nnx.fori_loop(0, 3, lambda i, m: changed(m), model)
        elif loop == "while_loop":
            back, _ = nnx.while_loop(lambda v: v[1] < 3, lambda v: (changed(v[0]), v[1] + 1), (model, 0))
        elif loop == "scan":
            back, _ = nnx.scan(lambda m, x: (changed(m), x), in_axes=(nnx.Carry, 0))(model, jnp.ones(3))
        else:
            axes = (nnx.StateAxes({...: nnx.Carry}), nnx.Carry, 0)
            nnx.scan(lambda m, c, x: (c, changed(m).w[...]), in_axes=axes)(model, 0.0, jnp.ones(3))
            back = model
        return back is model, model

    same(run)
