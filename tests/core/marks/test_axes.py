"""Leading axes of values: which arrays have them, and how arrays with different ones are combined."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from tests.core.comparing import equal, kinds

from sonde import _jax, capture, sow
from sonde.core.marks.axes import (
    Axis,
    common_axes,
    either,
    leaf_has,
    over_axes,
    per_example,
    repeated_along,
    room_for_axes,
    spread,
    with_leaves,
    zero_unless,
)

X = jnp.array([0.5, -1.0, 2.0])


def test_vmap_puts_the_mapped_axis_first():
    xs = jnp.arange(6.0).reshape(3, 2)
    result, records = capture(jax.vmap(lambda x: sow(x * 2, "h"), in_axes=1, out_axes=1))(xs)
    equal(result, xs * 2)
    equal(records["h"].value, xs.T * 2)
    assert kinds(records["h"]) == [["vmap"]]


def test_several_at_once_loops_first_then_mapped_axes():
    def f(x):  # vmap of scan of vmap of scan
        inner = lambda x: lax.scan(lambda c, i: (c, sow(x + 10 * c + i, "h")), 1.0, jnp.arange(2.0))[1]
        outer = lambda x: lax.scan(lambda c, i: (c, jax.vmap(inner)(x + 100 * i)), 0.0, jnp.arange(4.0))[1]
        return jax.vmap(outer)(x)

    x = jnp.arange(15.0).reshape(5, 3)
    record = capture(f)(x)[1]["h"]
    assert kinds(record) == [["scan", "scan", "vmap", "vmap"]]
    assert [axis.size for axis in record.axes[0]] == [4, 2, 5, 3]
    outer, inner = 100 * jnp.arange(4.0), jnp.arange(2.0)
    equal(record.value, outer[:, None, None, None] + inner[:, None, None] + 10 + x)


def test_nested_vmaps_outermost_axis_first():
    f = lambda x, y: sow(x + 10 * y, "h")
    result, records = capture(jax.vmap(jax.vmap(f, (None, 0)), (0, None)))(jnp.arange(2.0), jnp.arange(3.0))
    equal(records["h"].value, jnp.arange(2.0)[:, None] + 10 * jnp.arange(3.0))
    equal(result, records["h"].value)
    _, records = capture(jax.vmap(jax.vmap(f, (0, None)), (None, 0)))(jnp.arange(2.0), jnp.arange(3.0))
    equal(records["h"].value, jnp.arange(2.0) + 10 * jnp.arange(3.0)[:, None])


def test_a_leaf_that_is_not_mapped_gets_the_axis_too():
    def f(x, w):
        tree = sow({"x": x * 2, "w": w, "k": jnp.arange(2)}, "tree")
        return tree["x"] + tree["w"]

    for wrap in (lambda f: f, jax.jit):
        value = capture(wrap(jax.vmap(f, (0, None))))(X, 5.0)[1]["tree"].value
        equal(value, {"x": X * 2, "w": jnp.full(3, 5.0), "k": jnp.tile(jnp.arange(2), (3, 1))})


def test_a_value_that_does_not_depend_on_the_mapped_axis_is_recorded_once():
    record = capture(jax.vmap(lambda x, w: x + sow(w * 2, "w"), (0, None)))(X, 5.0)[1]["w"]
    equal(record.values, (10.0,))
    assert kinds(record) == [[]]


# ---------------------------------------------------------------------------------------------------------------------
# By hand, against NumPy's broadcasting
# ---------------------------------------------------------------------------------------------------------------------

A, B = np.arange(6.0).reshape(2, 3), np.arange(3.0) * 10
TWO, THREE = Axis("vmap", 2), Axis("vmap", 3)


def test_a_function_of_elements_over_axes_that_arguments_have_or_lack():
    add = lambda x, y: x + y
    np.testing.assert_array_equal(over_axes(add, [[True, True], [False, True]])(A, B), A + B)
    np.testing.assert_array_equal(over_axes(add, [[True, False], [False, True]])(A[:, 0], B), A[:, :1] + B)
    assert over_axes(add, [[False, False]] * 2)(1.0, 2.0) == 3.0
    # Shapes are not compared: an array of length 3 that has no axis is one element.
    pair = over_axes(lambda x, y: jnp.stack([x.sum(), y.sum()]), [[True], [False]])(A.T, B)
    np.testing.assert_array_equal(pair, [[row.sum(), B.sum()] for row in A.T])
    assert either([True, False, False], [False, False, True]) == [True, False, True]


def test_zeros_elsewhere_give_every_array_the_axes_of_the_choice():
    chosen = np.array([True, False])
    (a, b), has = zero_unless(chosen, [True, False], [A, B], [[True, True], [False, True]])
    np.testing.assert_array_equal(a, A * [[1], [0]])
    np.testing.assert_array_equal(b, [B, B * 0])
    assert has == [[True, True], [True, True]]


def test_which_leaf_has_which_axis():
    axes = with_leaves((TWO, THREE), [[True, True], [False, True]])
    assert [leaf_has(axes, i) for i in range(2)] == [[True, True], [False, True]]
    assert axes[1].leaves is None  # all have it
    assert leaf_has(axes, 1, reduced=True) == [True, True]
    assert with_leaves((TWO,), []) == (TWO,)
    np.testing.assert_array_equal(spread(B, axes, 1), np.broadcast_to(B, (2, 3)))
    np.testing.assert_array_equal(spread(A, axes, 0), A)
    crossed = np.stack([B, B + 1])  # an axis in front that a transform put there
    np.testing.assert_array_equal(spread(crossed, axes, 1, skip=1), np.stack([[B, B], [B + 1, B + 1]]))


def test_room_is_made_for_axes_that_are_lacking():
    assert room_for_axes(jnp.ones((2, 4)), [True, False, True]).shape == (2, 1, 4)
    assert repeated_along(jnp.ones((2, 3)), 5, 1).shape == (2, 5, 3)


def test_a_function_of_one_example_where_some_or_all_arrays_are_shared():
    total = lambda x, y: {"sum": x + y}
    found = per_example(total, (dataclasses.replace(TWO, leaves=(True, False)),), 2)(A, B)["sum"]
    np.testing.assert_array_equal(found, A + B)
    shared = dataclasses.replace(THREE, leaves=(False, False))
    np.testing.assert_array_equal(per_example(total, (shared,), 2)(1.0, 2.0)["sum"], [3.0, 3.0, 3.0])


def test_axes_of_two_rows_are_found_in_each_other_if_there_is_one_way():
    scan = Axis("scan", 2)
    assert common_axes([TWO, THREE], [THREE]) == ([TWO, THREE], [True, True], [False, True])
    assert common_axes([THREE], [TWO, THREE]) == ([TWO, THREE], [False, True], [True, True])
    assert common_axes([TWO, THREE], []) == ([TWO, THREE], [True, True], [False, False])
    assert common_axes([TWO, TWO], [TWO]) is None  # two ways
    assert common_axes([TWO, TWO, TWO], [TWO, TWO]) is None  # three
    assert common_axes([TWO, TWO], [TWO, TWO, TWO]) is None
    assert common_axes([TWO, THREE], [THREE, TWO]) is None  # none
    assert common_axes([scan, TWO], [TWO]) == ([scan, TWO], [True, True], [False, True])


def test_two_rows_that_each_lack_an_axis_are_one_if_the_order_is_known():
    program, other = object(), object()
    outer, inner = (Axis("vmap", 2, mapped_by=_jax.MappedBy(program, path)) for path in ((1,), (1, 2)))
    last = Axis("vmap", 2, mapped_by=_jax.MappedBy(other, (1,)))
    apart = Axis("vmap", 2, mapped_by=_jax.MappedBy(other, (5,)))
    assert common_axes([inner, last], [outer, last]) == ([outer, inner, last], [False, True, True], [True, False, True])
    assert common_axes([outer, last], [inner, last]) == ([outer, inner, last], [True, False, True], [False, True, True])
    assert common_axes([apart, last], [outer, last]) is None


def test_which_loop_an_axis_is_of_is_no_part_of_equality():
    assert Axis("scan", 2, loop=object()) == Axis("scan", 2, loop=object(), reverse=True)
    assert Axis("scan", 2) != Axis("vmap", 2)
    assert Axis("mesh", 2, "d") != Axis("mesh", 2, "e")
    assert [axis.is_loop for axis in (Axis("scan"), Axis("while"), Axis("vmap"), Axis("mesh"))] == [
        True,
        True,
        False,
        False,
    ]
    assert repr((Axis("scan", 4), Axis("mesh", 2, "d"))) == "(scan:4, mesh:d)"
