"""The arrays that an edit puts at a site, from a value, a function, a record, or some positions of one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from tests.core.making import item_of, site_of

import sonde
from sonde.core.edits.new_values import arrays_to_add, at_positions, checked_leaves, given_arrays, recorded_arrays
from sonde.core.interpret.seen_sites import SeenSites
from sonde.core.interpret.where import Loop, Where
from sonde.core.marks.axes import Axis
from sonde.core.marks.site import View
from sonde.core.records.build import make_records
from sonde.errors import EditError

OLD = np.array([1.0, 2.0, 3.0], np.float32)
SITE = site_of(OLD, "a/h")
PLAIN = View()
MAPPED = View(axes=(Axis("vmap", 2),))
AT = Where("a/h", SITE, PLAIN)
AT_MAPPED = Where("a/h", SITE, MAPPED)
STACK = np.arange(12, dtype=np.float32).reshape(4, 3)


def test_a_value_as_it_is():
    np.testing.assert_array_equal(given_arrays(OLD * 2, [OLD], AT)[0], OLD * 2)
    tree = {"n": 3, "x": OLD}  # what is not an array may be anything: it is not replaced
    (x,) = given_arrays({"n": "other", "x": OLD + 1}, [OLD], AT._replace(marked=site_of(tree)))
    np.testing.assert_array_equal(x, OLD + 1)


@pytest.mark.parametrize(
    ("new", "says"),
    [
        (OLD[:2], r"expected float32\[3\], got float32\[2\]"),
        (OLD.astype(np.int32), r"expected float32\[3\], got int32\[3\]"),
        ((OLD,), "expected the structure"),
        (2.0, r"expected float32\[3\], got float32\[\]"),
    ],
    ids=["shape", "dtype", "structure", "number"],
)
def test_a_value_that_does_not_fit_names_the_site_and_both_types(new, says):
    with pytest.raises(EditError, match=rf"edit of 'a/h' \(.*making.py:7\): {says}"):
        given_arrays(new, [OLD], AT)


def test_a_python_number_takes_on_the_dtype():
    (x,) = given_arrays(3, [np.float32(1)], AT._replace(marked=site_of(np.float32(1))))
    assert x.dtype == jnp.float32
    assert x == 3


def test_a_value_for_one_example_is_for_all():
    old = np.zeros((2, 3), np.float32)
    np.testing.assert_array_equal(given_arrays(OLD, [old], AT_MAPPED)[0], [OLD, OLD])
    np.testing.assert_array_equal(given_arrays(STACK[:2], [old], AT_MAPPED)[0], STACK[:2])


def test_a_stack_gives_each_iteration_its_row():
    for i in range(4):
        (x,) = given_arrays(STACK, [OLD], AT.around([Loop(i, 4)]))
        np.testing.assert_array_equal(x, STACK[i])
    np.testing.assert_array_equal(given_arrays(OLD, [OLD], AT.around([Loop(1, 4)]))[0], OLD)
    with pytest.raises(EditError, match="expected float32"):
        given_arrays(STACK[:3], [OLD], AT.around([Loop(1, 4)]))


def test_axes_of_outer_loops_may_be_missing():
    where = AT.around([Loop(1, 2), Loop(3, 4)])
    np.testing.assert_array_equal(given_arrays(STACK, [OLD], where)[0], STACK[3])
    np.testing.assert_array_equal(given_arrays(np.stack([STACK, STACK * 2]), [OLD], where)[0], STACK[3] * 2)


def test_what_is_added_takes_the_dtype_and_may_be_nothing():
    where = AT._replace(marked=site_of({"n": OLD, "x": OLD}))
    nothing, more = arrays_to_add({"n": None, "x": np.arange(3)}, [OLD, OLD], where)
    np.testing.assert_array_equal(nothing, OLD * 0)
    np.testing.assert_array_equal(more, np.arange(3, dtype=np.float32))
    assert more.dtype == np.float32
    with pytest.raises(EditError, match=r"perturbation of 'a/h' .*: expected float32\[3\], got float32\[2\]"):
        arrays_to_add(OLD[:2], [OLD], AT)
    with pytest.raises(EditError, match=r"perturbation of 'a/h' .*: expected the structure"):
        arrays_to_add((OLD,), [OLD], AT)


def test_what_a_function_returns_is_checked():
    np.testing.assert_array_equal(checked_leaves(OLD * 2, [OLD], SITE)[0], OLD * 2)
    with pytest.raises(EditError, match=r"edit of the gradient of 'a/h' .*: expected float32\[3\], got float32\[1\]"):
        checked_leaves(OLD[:1], [OLD], SITE, "the gradient of ")


def test_an_error_of_the_function_names_the_site():
    def fails(h):
        raise KeyError("mine")

    for f in (lambda x: sonde.sow(x, "h"), jax.jit(lambda x: sonde.sow(x, "h"))):
        with pytest.raises(KeyError) as caught:
            sonde.edit(f, {"h": fails})(jnp.ones(2))
        assert "at site 'h'" in caught.value.__notes__[0]


def test_positions_along_an_axis():
    old = np.zeros((2, 3), np.float32)
    new = np.ones((2, 3), np.float32)
    site = site_of(old)
    np.testing.assert_array_equal(at_positions([new], [old], [0, -1], 1, site)[0], [[1, 0, 1]] * 2)
    np.testing.assert_array_equal(at_positions([new], [old], [1], -2, site)[0], [[0] * 3, [1] * 3])
    with pytest.raises(EditError, match=r"a value of shape \[2, 3\] has no position 3 along axis 1"):
        at_positions([new], [old], [3], 1, site)
    with pytest.raises(EditError, match=r"a value of shape \[3\] has no axis 1"):
        at_positions([OLD], [OLD], [0], 1, SITE)


def record_with(value, **extras):
    return make_records([item_of(SITE, value, path="h", **extras)], SeenSites())["h"]


def test_a_record_says_where_its_branch_was_taken():
    new = OLD * 5
    (x,), taken = recorded_arrays(record_with(new), [OLD], AT)
    np.testing.assert_array_equal(x, new)
    assert taken is None
    for has_value in (True, False):
        (x,), taken = recorded_arrays(record_with(new, taken=np.asarray(has_value)), [OLD], AT)
        np.testing.assert_array_equal(x, new)
        assert bool(taken) == has_value


@pytest.mark.parametrize(
    ("extras", "call", "says"),
    [
        ({}, 1, "the record has 1 calls, but this is call 1"),
        ({"count": np.int32(3)}, 0, "the record is of a while_loop in other loops"),
        ({"taken": np.array([True, False])}, 0, "examples took different branches"),
    ],
)
def test_a_record_that_says_nothing_about_this_call_is_refused(extras, call, says):
    with pytest.raises(EditError, match=says):
        recorded_arrays(record_with(OLD, **extras), [OLD], AT._replace(call=call))


def test_examples_that_took_different_branches_get_back_what_each_had() -> None:
    def f(x):
        one = lambda x: jax.lax.cond(x.sum() > 0, lambda x: sonde.sow(x * 2, "up"), lambda x: x, x)
        return jax.vmap(one)(x)

    x = jnp.array([[1.0, 2.0], [-1.0, -2.0], [3.0, 4.0]])
    expected, records = sonde.capture(f)(x)
    assert records["up"].taken[0].tolist() == [True, False, True]
    np.testing.assert_array_equal(sonde.edit(f, records)(x), expected)
    others = sonde.edit(f, records)(jnp.abs(x) * 7)  # all take the branch now; the second has no value to get back
    np.testing.assert_array_equal(others, [[2.0, 4.0], [14.0, 28.0], [6.0, 8.0]])


def counting(n, x):
    return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, sonde.sow(jnp.sin(s[1]), "h")), (0, x))[1]


def times_ten(records):
    return jax.tree.map(lambda x: x * 10 if x.dtype == jnp.float32 else x, records)


def test_a_record_of_a_while_loop_has_a_part_for_each_iteration():
    _, records = sonde.capture(functools.partial(counting, 3), last=5)(OLD)
    other = times_ten(records)
    rows = other["h"].value
    for wrap in (lambda f: f, jax.jit, lambda f: lambda x: jax.vmap(f)(x[None])[0]):
        np.testing.assert_allclose(sonde.edit(wrap(functools.partial(counting, 3)), other)(OLD), rows[2], rtol=1e-6)
        np.testing.assert_allclose(sonde.edit(wrap(functools.partial(counting, 2)), other)(OLD), rows[1], rtol=1e-6)
        # Iterations that the other run did not have keep what they compute.
        longer = sonde.edit(wrap(functools.partial(counting, 5)), other)(OLD)
        np.testing.assert_allclose(longer, jnp.sin(jnp.sin(rows[2])), rtol=1e-5)


def test_a_record_of_a_while_loop_in_a_scan_and_under_vmap():
    f = lambda x: lax.scan(lambda c, n: (counting(n, c), None), x, jnp.array([2, 0, 3]))[0]
    _, records = sonde.capture(f, last=3)(OLD)
    np.testing.assert_allclose(sonde.edit(f, times_ten(records))(OLD), 10 * records["h"].value[2, 2], rtol=1e-6)
    mapped = jax.vmap(counting)
    n = jnp.array([2, 4, 0])
    _, records = sonde.capture(mapped, last=4)(n, OLD)
    expected = [10 * records["h"].value[1, 0], 10 * records["h"].value[3, 1], OLD[2]]
    np.testing.assert_allclose(sonde.edit(mapped, times_ten(records))(n, OLD), expected, rtol=1e-6)


@pytest.mark.every(2)
def test_a_record_of_a_while_loop_on_a_mesh_and_with_a_branch_inside():
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))
    x = jnp.array([0.2, 0.7, 0.4, 1.5])

    def growing(x):
        """Doubles until it is large: shards run unequally often."""
        branch = lambda c: lax.cond(c.sum() > 1, lambda c: sonde.sow(c * 2, "large"), lambda c: c * 2, c)
        step = lambda s: (s[0] + 1, sonde.sow(branch(s[1]), "all"))
        return lax.while_loop(lambda s: s[1].sum() < 6, step, (0, x))[1]

    f = jax.shard_map(growing, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    for wrap in (lambda f: f, jax.jit):
        expected, records = sonde.capture(wrap(f), last=4)(x)
        assert records["all"].counts[0].tolist() == [3, 2]
        for patterns in (["all"], ["large"], ["all", "large"]):
            chosen = {path: records[path] for path in patterns}
            np.testing.assert_allclose(sonde.edit(wrap(f), chosen)(x), expected)
        # Where the record has a value, it is the value: the same number of iterations for a start that is near.
        np.testing.assert_allclose(sonde.edit(wrap(f), {"all": records["all"]})(x * 1.01), expected)
        second = {"all": sonde.Edit(lambda h: h * 3, iterations=1)}  # counted in each shard
        by_hand = jnp.concatenate([sonde.edit(growing, second)(shard) for shard in (x[:2], x[2:])])
        np.testing.assert_allclose(sonde.edit(wrap(f), second)(x), by_hand)
    seen = sonde.capture(lambda x: growing(x), last=4)(x[:2])[1]["large"]
    assert seen.taken[0].tolist()[:3] == [False, True, True]
    last = sonde.edit(growing, {"large": times_ten({"h": seen})["h"]})(x[:2])
    np.testing.assert_allclose(last, x[:2] * 4 * 10)


def test_a_record_that_lacks_iterations_is_refused():
    f = functools.partial(counting, 3)
    with pytest.raises(EditError, match=r"edit of 'h': .* that ran 3 times, .* the last iteration; .* last=3"):
        sonde.edit(f, sonde.capture(f)(OLD)[1])
    with pytest.raises(EditError, match="not known while the program is traced"):
        jax.jit(lambda records: sonde.edit(f, records)(OLD))(sonde.capture(f, last=3)(OLD)[1])


def test_a_while_loop_in_a_scan_has_not_its_length():
    inner = lambda c: lax.while_loop(lambda s: s[0] < 5, lambda s: (s[0] + 1, sonde.sow(s[1] + 1, "h")), (0, c))[1]
    f = lambda x: lax.scan(lambda c, _: (inner(c), None), x, length=3)[0]
    assert sonde.edit(f, {"h": sonde.Edit(lambda h: h * 10, iterations=4)})(0.0) == 5550.0
