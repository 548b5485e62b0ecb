"""The operands of the site primitive: taken apart and put together, whatever goes with the arrays."""

import itertools

import numpy as np
import pytest
from tests.core.making import site_of

from sonde.core.marks.operands import Operands, operands_of
from sonde.core.marks.site import Gate, View

GATES = frozenset({Gate(object(), 0, 2)})
VIEWS = [
    View(gradient_of=gradient_of, role=role, anchored=anchored, gates=gates, whiles=whiles)
    for gradient_of, role, anchored, gates, whiles in itertools.product(
        (None, (0, 1)), ("site", "mark", "look"), (False, True), (frozenset(), GATES), ((), (object(), object()))
    )
]


@pytest.mark.parametrize("n", [0, 1, 2])
@pytest.mark.parametrize("grads", [False, True])
def test_whatever_is_put_together_is_taken_apart_again(n, grads):
    site = site_of([np.ones(2)] * n, grads=grads)
    arrays = [f"array {i}" for i in range(n)]
    for view in VIEWS:
        active = tuple(f"active {i}" for i in range(len(view.whiles)))
        given = Operands(list(arrays), "anchor", "token", "gate", active)
        flat = given.flat(site, view)
        assert len(set(flat)) == len(flat)
        found = operands_of(flat, site, view)
        assert found.arrays == arrays
        assert found.active == active
        assert found.flat(site, view) == flat
        for name, value in (("anchor", found.anchor), ("token", found.token), ("gate", found.gate)):
            assert value in (None, name)
        assert (found.gate is None) == (not view.gates)
        assert (found.anchor is None) == (not view.anchored)


def test_which_sites_take_a_token():
    """A gradient always does; a look that is parted from its mark does if gradients are wanted."""
    plain, with_grads = site_of(1.0), site_of(1.0, grads=True)
    given = Operands([], token="token")
    assert given.flat(plain, View(gradient_of=())) == ["token"]
    assert given.flat(with_grads, View()) == []
    assert given.flat(with_grads, View(role="look")) == ["token"]
    assert given.flat(plain, View(role="look")) == []


def test_extras_are_what_there_is():
    assert Operands([1.0]).extras == {}
    assert Operands([1.0], token=0, gate=False, anchor=3).extras == {"token": 0, "taken": False}
