"""Rows of named loops: which there are, in which order, and what is cut out of the stacked arrays."""

import jax
import jax.numpy as jnp
import numpy as np
from tests.core.making import item_of, site_of

import sonde
from sonde.core.interpret.seen_sites import SeenSites
from sonde.core.marks.axes import Axis
from sonde.core.marks.site import View
from sonde.core.records.build import make_records
from sonde.core.records.gradient_pairing import Call
from sonde.core.records.loop_rows import CallRow, Cut, row_table, with_rows

SITE = site_of(np.zeros(2))


def named(size, *, rows=None):
    return Axis("scan", size, rows=tuple(range(size)) if rows is None else rows)


def stacked(*sizes):
    return np.arange(2.0 * np.prod(sizes), dtype=np.float32).reshape(*sizes, 2)


def records_of(*items):
    return make_records(list(items), SeenSites())


def test_rows_have_paths_of_their_own_and_are_cut_out():
    x = stacked(3)
    records = records_of(item_of(SITE, x, path="blocks/*/h", view=View(axes=(named(3),))))
    assert list(records) == ["blocks/0/h", "blocks/1/h", "blocks/2/h"]
    for i in range(3):
        np.testing.assert_array_equal(records[f"blocks/{i}/h"].value, x[i])
    np.testing.assert_array_equal(records["blocks/*/h"].value, x)
    assert records["blocks/1/h"].axes == ((),)


def test_two_named_loops_and_one_without_a_name():
    x = stacked(2, 4, 3)
    view = View(axes=(named(2), Axis("scan", 4), named(3)))
    records = records_of(item_of(SITE, x, path="a/*/b/*/h", view=view))
    assert len(records) == 6
    np.testing.assert_array_equal(records["a/1/b/2/h"].value, x[1, :, 2])
    assert [axis.size for axis in records["a/1/b/2/h"].axes[0]] == [4]


def test_rows_come_as_a_python_loop_would_meet_them():
    """All sites of an iteration, then the next; what comes after the loop comes after it."""
    view = View(axes=(named(2),))
    items = [item_of(SITE, stacked(2), path=f"blocks/*/{name}", view=view) for name in ("q", "k")]
    records = records_of(*items, item_of(SITE, np.zeros(2), path="end"))
    assert list(records) == ["blocks/0/q", "blocks/0/k", "blocks/1/q", "blocks/1/k", "end"]


def test_only_rows_that_were_asked_for_are_kept():
    x = stacked(5)
    view = View(axes=(named(5),), rows=((1,), (3,)))
    flag = np.array([True, False, True, False, True])
    item = item_of(SITE, x, path="blocks/*/h", view=view, taken=flag)
    call = with_rows(Call(item, {}))
    np.testing.assert_array_equal(call.item.leaves[0], x[[1, 3]])
    np.testing.assert_array_equal(call.item.extras["taken"], [False, False])
    records = records_of(item)
    assert list(records) == ["blocks/1/h", "blocks/3/h"]
    np.testing.assert_array_equal(records["blocks/3/h"].value, x[3])
    assert [bool(records["blocks/3/h"].taken[0])] == [False]


def test_gradients_have_the_rows_of_their_values():
    x = stacked(4)
    item = item_of(SITE, x, path="blocks/*/h", view=View(order=1, axes=(named(4),), rows=((2,),)))
    gradient = item_of(SITE, -x, view=View(gradient_of=(0,), axes=(Axis("scan", 4),)))
    found = with_rows(Call(item, {0: gradient, 1: None})).grads
    assert found[0] is not None
    np.testing.assert_array_equal(found[0].leaves[0], -x[[2]])
    assert found[1] is None


def test_a_call_without_named_loops_is_left_as_it_is():
    call = Call(item_of(SITE, stacked(3), view=View(axes=(Axis("scan", 3),))), {})
    assert with_rows(call) is call


def test_a_leaf_that_does_not_vary_is_in_every_row():
    site = site_of((np.zeros(2), np.zeros(2)))
    x, w = stacked(3), np.array([8.0, 9.0], np.float32)
    axis = Axis("scan", 3, leaves=(True, False), rows=(0, 1, 2))
    records = records_of(item_of(site, x, w, path="b/*/h", view=View(axes=(axis,))))
    np.testing.assert_array_equal(records["b/2/h"].value[0], x[2])
    np.testing.assert_array_equal(records["b/2/h"].value[1], w)


def test_the_table_says_where_a_row_is_among_those_that_were_kept():
    records = records_of(item_of(SITE, stacked(5), path="b/*/h", view=View(axes=(named(5),), rows=((3,), (4,)))))
    assert records.rows("b/4/h") == [CallRow("b/*/h", 0, (1,), (4,))]
    assert row_table([]) == {}


def test_a_cut_is_made_when_it_is_asked_for_and_once():
    made = []
    cut = Cut(lambda: made.append(1) or ["x", "y", "z"], 3)
    assert len(cut) == 3
    assert not made
    assert cut[1] == "y"
    assert cut[1:] == ("y", "z")
    assert list(cut) == ["x", "y", "z"]
    assert len(made) == 1


def test_all_rows_of_a_loop_are_read_with_one_program():
    def f(x):
        with sonde.scope("blocks/*"):
            return jax.lax.scan(lambda c, _: (sonde.sow(c * 2, "h"), None), x, length=40)[0]

    _, records = sonde.capture(jax.jit(f))(jnp.ones((2, 3)))
    events: list[str] = []
    listen = lambda event, *_, **__: events.append(event)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        text = repr(records)
        compiled = [event for event in events if event == "/jax/core/compile/backend_compile_duration"]
        assert not compiled and "'blocks/39/h', values=float32[2,3]" in text
        for i in range(40):
            np.testing.assert_array_equal(records[f"blocks/{i}/h"].value, np.full((2, 3), 2.0 ** (i + 1)))
        compiled = [event for event in events if event == "/jax/core/compile/backend_compile_duration"]
        assert len(compiled) <= 1
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
