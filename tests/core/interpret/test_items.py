"""Items, split into arrays and static data, and rebuilt from both."""

import numpy as np
from tests.core.making import item_of, site_of

from sonde.core.interpret.items import Bundle, build_items, expand, firsts, flat_arrays, flat_specs, in_new_loops
from sonde.core.marks.axes import Axis
from sonde.core.marks.site import View

SITE = site_of((np.ones(2), np.ones(3)))
ITEMS = [
    item_of(SITE, np.ones(2), np.zeros(3), path="a", token=5, taken=True),
    item_of(SITE, path="empty"),
    item_of(SITE, np.full(2, 7.0), path="b", count=3),
]


def test_arrays_and_specs_are_all_there_is():
    built = build_items(flat_specs(ITEMS), flat_arrays(ITEMS))
    assert [item.spec for item in built] == [item.spec for item in ITEMS]
    assert [item.extras for item in built] == [{"token": 5, "taken": True}, {}, {"count": 3}]
    assert [len(item.leaves) for item in built] == [2, 0, 1]
    np.testing.assert_array_equal(built[2].leaves[0], [7, 7])
    assert [spec.size for spec in flat_specs(ITEMS)] == [4, 0, 2] == [len(item.arrays) for item in ITEMS]


def test_a_bundle_is_the_items_that_it_was_made_of():
    bundle = Bundle(flat_specs(ITEMS[1:]), flat_arrays(ITEMS[1:]), {})
    mixed = [ITEMS[0], bundle]
    assert [item.path for item in expand(mixed)] == ["a", "empty", "b"]
    assert flat_specs(mixed) == flat_specs(ITEMS)
    assert len(flat_arrays(mixed)) == 6
    assert expand([]) == []


def test_map_arrays_leaves_the_item_alone():
    doubled = ITEMS[2].map_arrays(lambda x: x * 2)
    np.testing.assert_array_equal(doubled.leaves[0], [14, 14])
    assert doubled.extras == {"count": 6}
    assert ITEMS[2].extras == {"count": 3}
    np.testing.assert_array_equal(ITEMS[2].leaves[0], [7, 7])


def test_loops_outermost_first_with_an_axis_or_without():
    inner, outer, around = object(), object(), object()
    spec = ITEMS[0].spec.inside(Axis("scan", 4, loop=inner)).inside_loop(around).inside(Axis("scan", 2, loop=outer))
    assert [axis.size for axis in spec.view.axes] == [2, 4]
    assert spec.loops == (outer, around, inner)


def test_another_run_has_loops_of_its_own():
    loop = object()
    specs = [ITEMS[0].spec.inside(Axis("scan", 4, loop=loop)), ITEMS[2].spec.inside(Axis("scan", 4, loop=loop))]
    outside = item_of(SITE, view=View(axes=(Axis("vmap", 3),))).spec
    a, b, c = in_new_loops([*specs, outside])
    assert a.loops[0] is not loop
    assert a.loops == b.loops  # what ran in one loop still does
    assert a.view.axes[0].loop is a.loops[0]
    assert c is outside
    assert [a, b] == specs  # which loop it is, is not part of equality


def test_firsts_and_the_numbers_that_lead_back_to_them():
    keys = ["a", "b", "a", "c", "b"]
    positions, numbers = firsts(keys)
    assert positions == [0, 1, 3]
    assert [keys[positions[number]] for number in numbers] == keys
