"""Layouts: the attributes of an object, shared by all objects with the same ones."""

import gc
import pickle

import pytest

from sonde import nnx
from sonde.nnx.structure.layout import EMPTY, layout_of


def test_layouts_are_shared():
    a, b = nnx.Dict(x=1, w=nnx.Param(1)), nnx.Dict(w=nnx.Param(2), x=2)
    assert a._layout is b._layout
    assert nnx.List([1, nnx.Param(2)])._structure()[0] is nnx.List([3, nnx.Param(4)])._structure()[0]


def test_a_layout_is_reached_by_any_way():
    one = EMPTY.having("w", True).having("n", False)
    assert one is EMPTY.having("n", False).having("w", True) is layout_of({"w": True, "n": False})
    assert one.lacking("n") is EMPTY.having("w", True)
    assert one.lacking("n").lacking("w") is EMPTY
    assert one.having("n", True) is not one
    assert one.having("n", False) is one


def test_names_are_in_the_order_of_states_and_data_and_static_are_apart():
    layout = layout_of({"b": True, "a": False, 11: True, 2: True})
    assert layout.names == (2, 11, "a", "b")
    assert (layout.data, layout.static) == ((2, 11, "b"), ("a",))
    values = {name: f"value {name}" for name in layout.names}
    assert layout.get_data(values) == ("value 2", "value 11", "value b")
    assert layout.get_static(values) == ("value a",)
    parts = {True: layout.get_data(values), False: layout.get_static(values)}
    assert [parts[is_data][at] for _, is_data, at in layout.turns] == [values[name] for name in layout.names]


@pytest.mark.parametrize("status", [{}, {"w": True}, {"n": False}])
def test_none_or_one_are_tuples_too(status):
    layout = layout_of(status)
    values = dict.fromkeys(status, 5)
    assert layout.get_data(values) + layout.get_static(values) == (5,) * len(status)


def test_a_copy_is_the_same_object():
    layout = layout_of({"w": True, "kept": False})
    assert pickle.loads(pickle.dumps(layout)) is layout


def test_what_is_not_used_is_forgotten():
    from sonde.nnx.structure import layout as layouts

    name = "a name that is used nowhere else"
    layout = layout_of({name: True})
    known = frozenset({name: True}.items())
    assert known in layouts._known
    del layout
    gc.collect()
    assert known not in layouts._known
