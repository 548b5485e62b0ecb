"""Objects that differ from all others."""

import copy

from sonde.nnx import ids


def test_copies_are_others():
    one = ids.uuid()
    assert one == one and len({one, ids.uuid(), copy.copy(one), copy.deepcopy(one)}) == 4
