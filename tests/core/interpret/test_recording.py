"""The handler that records: zeros where a branch was not taken, and reduce functions that see one example."""

import jax.numpy as jnp
import numpy as np
import pytest
from tests.core.making import site_of

from sonde.core.interpret.recording import Recording, leaf_indices, reduce_at, whole_gradient, zero_where_not
from sonde.core.interpret.where import Where
from sonde.core.marks.axes import Axis
from sonde.core.marks.site import View

X = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32)


def test_zeros_where_the_branch_was_not_taken():
    view = View(axes=(Axis("vmap", 3, leaves=(True, False)),))
    shared = np.array([7.0, 8.0], np.float32)
    (x, w), new = zero_where_not(np.array([True, False, True]), [X, shared], view)
    np.testing.assert_array_equal(x, X * [[1], [0], [1]])
    np.testing.assert_array_equal(w, [shared, [0, 0], shared])  # it varies over the axis from now on
    assert [new.axes[0].on_leaf(i) for i in range(2)] == [True, True]


def test_a_reduce_function_sees_one_example():
    seen = []

    def reduce(tree):
        seen.append((tree["x"].shape, tree["name"]))
        return {"sum": tree["x"].sum(), "w": tree["w"] * 2}

    site = site_of({"name": "s", "w": np.float32(0), "x": X[0]})  # arrays in the order of the keys
    found = reduce_at(reduce, [np.float32(5), X], site, View(axes=(Axis("vmap", 3, leaves=(False, True)),)))
    assert seen == [((2,), "s")]
    np.testing.assert_array_equal(found["sum"], X.sum(1))
    np.testing.assert_array_equal(found["w"], [10.0, 10.0, 10.0])  # what a reduce function returns has every axis


def test_an_error_of_a_reduce_function_names_the_site():
    def fails(value):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine") as caught:
        reduce_at(fails, [X], site_of(X, "a/b"), View())
    assert any("the reduce function at site 'a/b'" in note for note in caught.value.__notes__)


def test_a_reduce_function_that_returns_no_arrays_is_named():
    with pytest.raises(TypeError, match="arrays and numbers, not str") as caught:
        reduce_at(lambda x: {"a": x, "b": "text"}, [X], site_of(X, "a/b"), View())
    assert any("the reduce function at site 'a/b'" in note for note in caught.value.__notes__)
    for numbers in (1, 2.0, True, None, np.float32(1), X):
        assert reduce_at(lambda x, numbers=numbers: numbers, [X], site_of(X, "a/b"), View()) is numbers


def test_a_gradient_for_a_reduce_function_has_a_part_for_every_array():
    site = site_of({"n": np.arange(2), "x": X[0], "y": X[0]})
    view = View(gradient_of=(2,), axes=(Axis("vmap", 3),))
    (n, x, y), whole = whole_gradient([X], site, view)
    assert (np.shape(n), np.shape(x)) == ((), ())
    assert not n and not x
    np.testing.assert_array_equal(y, X)
    assert [whole.axes[0].on_leaf(i) for i in range(3)] == [False, False, True]
    same, unchanged = whole_gradient([X, X, X], site, view.replace(gradient_of=(0, 1, 2)))
    assert len(same) == 3
    assert unchanged == view.replace(gradient_of=(0, 1, 2))


def test_which_arrays_of_the_site_a_view_has():
    assert leaf_indices(View(), 3) == (0, 1, 2)
    assert leaf_indices(View(gradient_of=(0, 2)), 2) == (0, 2)
    assert leaf_indices(View(gradient_of=()), 0) == ()


def test_gradients_are_wanted_where_their_values_were():
    chosen, other = site_of(X, "chosen", grads=True), site_of(X, "other", grads=True)
    handler = Recording(("chosen",), grads=True)
    for site in (chosen, other):
        handler.record([X], handler.meet(site, View(), ()), {})
    assert [item.path for item in handler.items] == ["chosen"]  # pyright: ignore[reportAttributeAccessIssue]
    backward = View(gradient_of=(0,))
    assert handler.wants(Where("somewhere else", chosen, backward))
    assert not handler.wants(Where("chosen", other, backward))
    assert not Recording((), grads=False).wants(Where("chosen", chosen, backward))


def test_programs_are_kept_for_what_is_looked_for():
    reduce = jnp.mean
    keys = {
        Recording(p, **o).key for p, o in [((), {}), (("a",), {}), (("a",), {"grads": True}), (("a",), {"last": 2})]
    }
    assert len(keys) == 4
    assert Recording(("a",), reduce=reduce).key == Recording(("a",), reduce=reduce).key
    assert Recording(("a",), reduce=reduce).key != Recording(("a",)).key
