"""Where the value of a new Variable is placed."""

import threading

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from sonde import nnx
from sonde.nnx.variable.eager_sharding import partition_spec, using_eager_sharding


def test_sharding(same):
    def use(nnx):
        v = nnx.Param(jnp.ones((4, 2)), out_sharding=("x", None), eager_sharding=False)
        w = nnx.Param(jnp.ones((4, 2)), sharding_names=("x", None), eager_sharding=False)
        return v.out_sharding, v.sharding_names, w.get_metadata("out_sharding"), v.eager_sharding

    same(use)
    same(lambda nnx: nnx.Param(jnp.ones((4, 2)), out_sharding=("x", None)))
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))

    def placed(nnx):
        with jax.set_mesh(mesh), nnx.logical_axis_rules([("rows", "x")]):
            v = nnx.Param(jnp.ones((4, 2)), out_sharding=("rows", None))
        w = nnx.Param(jnp.ones((4, 2)), out_sharding=("x", None), mesh=mesh)
        specs = nnx.get_partition_spec(nnx.State({"v": w, "w": nnx.Param(jnp.ones(2))}))
        return str(v[...].sharding.spec), str(w[...].sharding.spec), str(specs["v"].get_raw_value())

    same(placed)


@pytest.mark.parametrize(
    ("out_sharding", "rules", "expected"),
    [
        (None, None, P()),
        ("x", None, P()),  # one name for all is none per dimension
        (("x", None), None, P("x", None)),
        (P("x", None), None, P("x", None)),
        (("rows", "columns"), [("rows", "x")], P("x", "columns")),
        ((("rows", "y"), None), [("rows", "x")], P(("x", "y"), None)),
        (("rows",), [("rows", "x"), ("rows", "y")], P("x")),  # the first rule counts
        (("rows",), [("rows", None)], P(None)),
    ],
)
def test_what_an_entry_means(out_sharding, rules, expected):
    assert partition_spec(out_sharding, rules) == expected


def test_rules_hold_in_a_block_and_those_of_the_variable_come_first():
    with nnx.logical_axis_rules([("rows", "x"), ("columns", "y")]):
        assert partition_spec(("rows", "columns")) == P("x", "y")
        assert partition_spec(("rows", "columns"), [("rows", "z")]) == P("z", "y")
        with nnx.logical_axis_rules([("rows", "w")]):
            assert partition_spec(("rows", "columns")) == P("w", "columns")
    assert partition_spec(("rows",)) == P("rows")


def test_placing_is_turned_off_for_a_block_in_this_thread():
    others = []
    with nnx.use_eager_sharding(False):
        assert not using_eager_sharding()
        thread = threading.Thread(target=lambda: others.append(using_eager_sharding()))
        thread.start()
        thread.join()
        v = nnx.Param(jnp.ones(2), out_sharding=("nowhere",))  # there is no mesh, and none is needed
        assert v.out_sharding == ("nowhere",)
    assert using_eager_sharding()
    assert others == [True]
    with pytest.raises(ValueError, match=r"out_sharding=\('nowhere',\) needs a mesh, and none is set"):
        nnx.Param(jnp.ones(2), out_sharding=("nowhere",))
