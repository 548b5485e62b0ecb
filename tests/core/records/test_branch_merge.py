"""Branches of a `cond` under `vmap` that recorded at the same site are merged."""

import numpy as np
from tests.core.making import item_of, site_of

from sonde.core.marks.axes import Axis
from sonde.core.marks.site import Gate, View
from sonde.core.records.branch_merge import merge_choices, tokens_of

SITE = site_of(np.zeros(()))
AXES = (Axis("vmap", 3),)


def branch(choice, number, value, taken, *, of=2, path="h", further=(), **extras):
    gates = frozenset({Gate(choice, number, of), *further})
    value, taken = np.asarray(value, np.float32), np.asarray(taken)
    return item_of(SITE, value, path=path, view=View(axes=AXES, gates=gates), taken=taken, **extras)


def test_without_choices_nothing_is_joined():
    items = [item_of(SITE, np.float32(1)), item_of(SITE, np.float32(2))]
    assert merge_choices(items) == items
    assert merge_choices([]) == []


def test_every_element_has_the_value_of_its_branch():
    choice, taken = object(), np.array([True, False, True])
    (joined,) = merge_choices([branch(choice, 0, [1, 0, 3], taken), branch(choice, 1, [0, -2, 0], ~taken)])
    np.testing.assert_array_equal(joined.leaves[0], [1, -2, 3])
    assert "taken" not in joined.extras  # one of the branches always is
    assert not joined.view.gates


def test_where_a_branch_lacks_the_site_the_flag_stays():
    choice = object()
    items = [
        branch(choice, 0, [1, 0, 0], [True, False, False], of=3),
        branch(choice, 2, [0, 5, 0], [False, True, False], of=3),
    ]
    (joined,) = merge_choices(items)
    np.testing.assert_array_equal(joined.leaves[0], [1, 5, 0])
    np.testing.assert_array_equal(joined.extras["taken"], [True, True, False])


def test_two_calls_in_each_branch_are_two_places():
    choice, taken = object(), np.array([True, True, False])
    items = [branch(choice, n, [10 * n + i] * 3, taken if n == 0 else ~taken) for n in range(2) for i in range(2)]
    first, second = merge_choices(items)
    np.testing.assert_array_equal(first.leaves[0], [0, 0, 10])
    np.testing.assert_array_equal(second.leaves[0], [1, 1, 11])


def test_two_choices_and_two_paths_are_not_joined():
    taken = np.array([True, False, True])
    one, other = object(), object()
    assert len(merge_choices([branch(one, 0, [1] * 3, taken), branch(other, 1, [2] * 3, ~taken)])) == 2
    assert len(merge_choices([branch(one, 0, [1] * 3, taken), branch(one, 1, [2] * 3, ~taken, path="g")])) == 2


def test_the_calls_of_joined_branches_are_all_remembered():
    choice, taken = object(), np.array([True, False, True])
    items = [
        branch(choice, 0, [1, 0, 3], taken, token=4, count=np.array([2, 0, 5])),
        branch(choice, 1, [0, 2, 0], ~taken, token=9, count=np.array([0, 7, 0])),
    ]
    assert tokens_of(items[0]) == (4,)
    (joined,) = merge_choices(items)
    assert tokens_of(joined) == (4, 9)
    assert len(joined.sites) == 2
    np.testing.assert_array_equal(joined.extras["count"], [2, 7, 5])


def test_a_choice_inside_a_branch_is_joined_first():
    outer, inner = object(), object()
    a, b, c = np.array([True, False, False]), np.array([False, True, False]), np.array([False, False, True])
    items = [
        branch(inner, 0, [1, 0, 0], a, further=[Gate(outer, 0, 2)]),
        branch(inner, 1, [0, 2, 0], b, further=[Gate(outer, 0, 2)]),
        branch(outer, 1, [0, 0, 3], c),
    ]
    (joined,) = merge_choices(items)
    np.testing.assert_array_equal(joined.leaves[0], [1, 2, 3])
    assert "taken" not in joined.extras
