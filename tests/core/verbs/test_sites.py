"""The sites and sizes that a capture would record, without running it."""

import io

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from rich.console import Console

import sonde
from sonde import nnx, sow
from sonde._array_text import short_place
from sonde.errors import NoSuchSiteError

X = jnp.ones(3)


def f(x):
    x = sow({"x": x * 2, "n": jnp.arange(2), "name": "s"}, "tree")["x"]
    return lax.scan(lambda c, _: (sow(c + 1, "c"), None), x, length=5)[0].sum()


def test_lists_without_running():
    ran = []

    def g(x):
        jax.debug.callback(lambda _: ran.append(1), x)
        return f(x)

    found = sonde.sites(g)(X)
    jax.effects_barrier()
    assert not ran
    assert found.paths == ("tree", "c")
    tree, c = found
    assert [(a.shape, str(a.dtype)) for a in tree.arrays] == [((2,), "int32"), ((3,), "float32")]
    assert (c.shape, c.loops, c.bytes, c.gradient, c.call) == ((5, 3), (5,), 60, False, 0)
    assert found.bytes == 60 + 8 + 12
    assert "test_sites.py:" in c.source


def test_bytes_are_those_of_the_capture():
    found = sonde.sites(jax.grad(f), grads=True)(X)
    _, records = sonde.capture(jax.grad(f), grads=True)(X)
    assert found.bytes == sum(x.nbytes for x in jax.tree.leaves(records))
    assert [i.gradient for i in found] == [False, True, False, True]


def test_shapes_instead_of_arrays_and_other_arguments():
    found = sonde.sites(lambda x, mode: sow(x, mode))(jax.ShapeDtypeStruct((7,), jnp.bfloat16), "name")
    assert (found[0].path, found[0].shape, found[0].dtype) == ("name", (7,), jnp.bfloat16)


def test_a_model_that_changes_its_state_is_left_alone():
    model = nnx.RNN(nnx.LSTMCell(3, 4, rngs=nnx.Rngs(0)))
    before = nnx.to_pure_dict(nnx.state(model, nnx.RngCount))
    assert sonde.sites(model)(jnp.ones((2, 5, 3))).paths
    assert nnx.to_pure_dict(nnx.state(model, nnx.RngCount)) == before


def test_keys_have_their_own_size():
    for impl, size in (("threefry2x32", 8), ("rbg", 16)):
        keys = lambda impl=impl: sow(jax.random.split(jax.random.key(0, impl=impl), 3), "keys")
        (site,) = sonde.sites(keys)()
        assert (site.shape, site.bytes) == ((3,), 3 * size)
        assert site.bytes == jax.random.key_data(keys()).nbytes


def test_patterns():
    assert sonde.sites(f, "c")(X).paths == ("c",)
    with pytest.raises(NoSuchSiteError):
        sonde.sites(f, "d")(X)
    with pytest.raises(TypeError, match="sites takes a callable"):
        sonde.sites(3)


def test_shown_as_text_and_as_a_table():
    found = sonde.sites(f)(X)
    assert repr(found).startswith(
        "2 values, 80 bytes\n  tree[0] int32[2] float32[3], 20 bytes, " + short_place(__file__)
    )
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(found)
    assert "2 sites, 80 bytes" in console.export_text()


def test_sites_show_how_values_are_laid_out():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))

    def f(x):
        return sow(x * 2, "h"), sow(x.sum(0), "sum")

    with jax.set_mesh(mesh):
        x = jax.device_put(jnp.ones((4, 3)), jax.NamedSharding(mesh, jax.P("data", None)))
        listed = sonde.sites(f)(x)
    assert [info.spec for info in listed] == [jax.P("data", None), jax.P(None)]
    assert "float32[4@data,3]" in repr(listed)
    assert [info.spec for info in sonde.sites(f)(jnp.ones((4, 3)))] == [None, None]
