"""Records as a mapping, as a pytree, and as text."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.core.comparing import equal

import sonde
from sonde import capture, sow

X = jnp.arange(3.0)


def f(x):
    with sonde.scope("block"):
        h = sow(jnp.sin(x), "h")
    return sow(sow(h * 2, "twice") + 1, "twice").sum()


def records(**options):
    return sonde.capture(jax.value_and_grad(f), grads=True, **options)(X)[1]


def test_an_immutable_mapping_in_program_order():
    r = records()
    assert list(r) == ["block/h", "twice"] and len(r) == 2 and "twice" in r
    with pytest.raises(TypeError):
        r["block/h"] = 1
    with pytest.raises(KeyError, match="'block/g' matches none of the program's 2 sites; nearest: 'block/h'"):
        r["block/g"]


def test_a_record_per_path():
    record = records()["block/h"]
    np.testing.assert_allclose(record.value, jnp.sin(X), rtol=1e-6)
    np.testing.assert_allclose(record.grad, 2 * jnp.ones(3))
    assert record.source.rpartition("/")[2].startswith("test_record.py:")
    assert (record.path, record.tag, record.counts, record.taken, record.axes) == (
        "block/h",
        None,
        (None,),
        (None,),
        ((),),
    )
    with pytest.raises(ValueError, match="record 'twice' has 2 values, not one: use `.values`"):
        records()["twice"].value


def test_a_record_is_not_an_array():
    record = records()["block/h"]
    for use in (
        lambda: record + 1,
        lambda: 2 * record,
        lambda: record @ record,
        lambda: -record,
        lambda: float(record),
    ):
        with pytest.raises(TypeError, match=r"compute with its value: records\['block/h'\]\.value"):
            use()


def test_axes_are_named():
    def g(x):
        return lax.scan(lambda c, _: (jax.vmap(lambda y: sow(y + 1, "y"))(c), None), x, length=4)[0]

    (axes,) = sonde.capture(g)(X)[1]["y"].axes
    assert [(a.kind, a.size) for a in axes] == [("scan", 4), ("vmap", 3)]


def test_a_pytree_that_two_runs_share():
    doubled = jax.tree.map(lambda a, b: a + b, records(), records())
    np.testing.assert_allclose(doubled["block/h"].value, 2 * jnp.sin(X), rtol=1e-6)
    mean = jax.jit(lambda r: r["block/h"].value.mean())(records())
    np.testing.assert_allclose(mean, jnp.sin(X).mean(), rtol=1e-6)


def test_reduce_is_applied_to_values_and_gradients():
    r = records(reduce=lambda v: {"mean": v.mean()})
    np.testing.assert_allclose(r["block/h"].value["mean"], jnp.sin(X).mean(), rtol=1e-6)
    np.testing.assert_allclose(r["block/h"].grad["mean"], 2.0)


def test_a_gradient_through_the_records_themselves():
    def loss(x):
        _, records = capture(lambda x: sow(x**2, "h"))(x)
        return jnp.sum(records["h"].value * 3)

    equal(jax.grad(loss)(X), 6 * X)
    equal(jax.jit(jax.grad(loss))(X), 6 * X)


def looked_at(x):
    def f(x):
        tree = sow({"x": x * 2, "k": jnp.arange(2), "s": "text"}, "tree")
        y = jax.vmap(lambda y: sow({"y": y, "w": x}, "mapped")["y"])(x)
        z = lax.scan(lambda c, row: (sow(c + row, "carry"), row), 0.0, tree["x"])[0]
        return lax.cond(z > 0, lambda z: sow(z, "branch"), lambda z: z, z) + y.sum()

    return capture(jax.grad(f), grads=True)(x)[1]


def test_records_are_an_immutable_mapping():
    records = looked_at(X)
    assert list(records) == ["tree", "mapped", "carry", "branch"]
    assert len(records) == 4
    assert "tree" in records
    assert "other" not in records
    with pytest.raises(KeyError, match="nearest: 'tree'"):
        records["tre"]
    with pytest.raises(TypeError):
        records["tree"] = 1  # pyright: ignore[reportIndexIssue]


def test_records_of_two_runs_have_one_structure():
    a, b = looked_at(X), looked_at(X + 1)
    assert jax.tree.structure(a) == jax.tree.structure(b)
    difference = jax.tree.map(lambda x, y: y - x if x.dtype != bool else y, a, b)
    equal(difference["tree"].value["x"], jnp.full(3, 2.0))
    equal(difference["carry"].value, jnp.array([2.0, 4.0, 6.0]))
    assert difference["tree"].value["s"] == "text"
    compiled = capture(jax.jit(lambda x: looked_at(x)))(X)[0]
    assert jax.tree.structure(a) == jax.tree.structure(compiled)


def test_records_cross_transforms():
    records = looked_at(X)
    through_jit = jax.jit(lambda r: r)(records)
    assert jax.tree.structure(through_jit) == jax.tree.structure(records)
    equal(jax.jit(lambda r: r["carry"].grad)(records), records["carry"].grad)
    loss = lambda x: sum(jnp.sum(v) for v in capture(lambda x: sow(x**2, "h"))(x)[1]["h"].values)
    equal(jax.grad(loss)(X), 2 * X)
    many = jax.vmap(looked_at)(jnp.stack([X, X + 1]))
    assert many["tree"].value["x"].shape == (2, 3)
    rows = lax.scan(lambda c, x: (c, looked_at(x)), 0, jnp.stack([X, X + 1]))[1]
    equal(rows["carry"].value, many["carry"].value)
    second = looked_at(X + 1)
    for found in (many, rows):
        equal(found["carry"].value[1], second["carry"].value)
        equal(found["carry"].grad[1], second["carry"].grad)
        assert found["mapped"].value["y"].shape == (2, 3)
        assert found["mapped"].value["w"].shape == (2, 3, 3)
        equal(found["mapped"].value["w"][1], second["mapped"].value["w"])
    one = jax.tree.map(lambda x: x[1], many)
    equal(one["mapped"].value, second["mapped"].value)
