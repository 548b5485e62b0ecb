"""`scan`: axes of Variables, order, names."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.nnx.transforms.cells import Cell
from tests.nnx.transforms.test_lifting import Count

from sonde import nnx


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
    with pytest.raises(ValueError, match=r"needs a tuple of 2 outputs, got 3 values"):
        nnx.scan(lambda c, x: (c, x, x))(0.0, jnp.ones(3))


def test_scan_names_axes():
    def f(c, v):
        return c, nnx.Param(v[...], out_sharding=v.out_sharding, eager_sharding=False)

    v = nnx.Param(jnp.ones((3, 2)), out_sharding=("layers", "x"), eager_sharding=False)
    _, out = nnx.scan(f, transform_metadata={nnx.PARTITION_NAME: "layers"}, in_axes=(None, 0), out_axes=(0, 0))(0.0, v)
    assert out.out_sharding == ("layers", "x") and v.out_sharding == ("layers", "x")


def test_scan_stacks_what_is_made_in_a_scanned_argument():
    layers = nnx.Dict(w=nnx.Param(jnp.arange(3.0)))

    def f(c, layer):
        layer.out = nnx.Intermediate(c * layer.w)
        return c + 1, c

    nnx.scan(f)(1.0, layers)
    np.testing.assert_array_equal(layers.out[...], [0, 2, 6])
    with pytest.raises(ValueError, match="in an argument that is broadcast"):
        nnx.scan(lambda m, x: setattr(m, "new", nnx.Param(x)), in_axes=(None, 0), out_axes=0)(Count(), jnp.ones(3))


def test_the_function_is_traced_once_in_a_mesh_too():
    traced = []

    @nnx.scan(in_axes=(0, nnx.Carry))
    def f(model, x):
        traced.append(x)
        return x @ model.w, None

    with jax.set_mesh(jax.make_mesh((1,), ("layers",), axis_types=(jax.sharding.AxisType.Auto,))):
        f(nnx.Dict(w=nnx.Param(jnp.ones((5, 4, 4)))), jnp.ones((2, 4)))
    assert len(traced) == 1


@pytest.mark.parametrize("array_axis", ["carry", "none", "with_param"])
def test_new_arrays_in_the_places_of_others_go_round_or_are_forgotten(same, array_axis):
    def program(nnx):
        class Holder(nnx.Module):
            def __init__(self):
                self.a = jnp.float32(1)
                self.w = nnx.Param(jnp.float32(2))
                self.more = nnx.List([jnp.float32(1), jnp.float32(2)])

        def body(m, c, x):
            m.a = m.a + x
            m.more[0] = m.more[0] + m.more[1]
            m.w[...] += m.a
            return c + m.a, c

        axes = {
            "carry": nnx.StateAxes({...: nnx.Carry}),
            "none": nnx.StateAxes({...: None}),
            "with_param": nnx.StateAxes({nnx.Param: nnx.Carry, ...: None}),
        }[array_axis]
        m = Holder()
        scanned = nnx.scan(body, in_axes=(axes, nnx.Carry, 0), graph_updates=True)
        return scanned(m, jnp.float32(0), jnp.arange(3.0)), m.a, m.more[0], m.w[...]

    assert same(program)[0] != "raised"


@pytest.mark.parametrize(
    ("in_axes", "out_axes", "words"),
    [
        ((nnx.Carry, 0), 0, "Carry must be in both in_axes and out_axes or in neither"),
        ((nnx.Carry, nnx.Carry), nnx.Carry, r"multiple Carry definitions, at in_axes\[0\] and in_axes\[1\]"),
        ((nnx.Carry, 0), (nnx.Carry, None), r"cannot broadcast output state. Got out_axes\[1\]=None"),
        ((0, 0), None, "cannot broadcast output state. Got out_axes=None"),
        (nnx.Carry, nnx.Carry, "in_axes=Carry takes one argument, got 2"),
    ],
)
def test_axes_that_do_not_fit(in_axes, out_axes, words):
    with pytest.raises(ValueError, match=words):
        nnx.scan(lambda c, x: (c, x), in_axes=in_axes, out_axes=out_axes)(jnp.zeros(2), jnp.arange(2.0))
