"""Where a program is: the parts of arrays that belong to an iteration, and rows of named loops."""

import numpy as np
from tests.core.making import site_of

from sonde.core.interpret.where import Loop, Position, Where
from sonde.core.marks.axes import Axis
from sonde.core.marks.site import View

STACK = np.arange(12, dtype=np.float32).reshape(4, 3)
SITE = site_of(STACK[0], "a/h")
AT = Where("a/h", SITE, View())
LOOPS = Loop(1, 4, path="a"), Loop(0, 9), Loop(5, 7, path="a/b")
IN_LOOPS = Where("a/*/b/*/h", SITE, View(), Position(loops=LOOPS))


def test_rows_of_a_named_loop_may_be_all_or_those_that_are_edited():
    loop = Loop(3, 4, rows=(1, 3))
    assert [loop.fits(n) for n in (4, 2, 3)] == [True, True, False]
    np.testing.assert_array_equal(loop.slice_of(STACK), STACK[3])
    np.testing.assert_array_equal(loop.slice_of(STACK[:2]), STACK[1])  # the second of the rows 1 and 3


def test_the_rows_that_an_edit_applies_to():
    chosen = IN_LOOPS.in_rows([(1, 5), (3, 5), (1, 6)])
    assert [loop.rows for loop in chosen.loops] == [(1, 3), None, (5, 6)]
    assert bool(IN_LOOPS.is_in([(1, 5)]))
    assert not bool(IN_LOOPS.is_in([(1, 4), (3, 5)]))
    assert IN_LOOPS.is_in([(i, j) for i in range(4) for j in range(7)]) is None


def test_iterations_and_lengths():
    assert IN_LOOPS.iteration == (1, 0, 5)
    assert (IN_LOOPS.named, IN_LOOPS.lengths) == ((0, 2), (4, 7))
    unnamed = IN_LOOPS.without_names()
    assert (unnamed.loops, unnamed.named, unnamed.lengths) == ((Loop(0, 9),), (), ())


def test_a_position_is_the_same_for_all_iterations_of_a_program():
    position = IN_LOOPS.position
    assert position.in_iteration([7]).iteration == (1, 0, 7)
    assert position.in_iteration([2, 3, 4]).key == position.key
    others = [
        position.along(("data", 2)),
        Position(2, loops=LOOPS),
        Position(loops=LOOPS[:2]),
        Position(loops=LOOPS[1:]),
    ]
    assert len({position.key, *[other.key for other in others]}) == 5
    assert Position(1, 9).key == Position(1, 0).key  # where it began is in the prefix


def test_an_unnamed_loop_is_kept_on_request():
    assert Position().entering(Loop(None, 3)).loops == ()
    assert Position().entering(Loop(None, 3), keeps_loop=True).loops == (Loop(None, 3),)
    inside = Position(loop_name="a")
    assert inside.entering(Loop(None, 3)).loops == (Loop(None, 3, path="a"),)
    assert inside.entering(Loop(None, None)).loop_name == "a"  # a while_loop leaves the name to the loops inside
    assert inside.entering() is inside


def test_the_part_of_a_recorded_array():
    where = AT.around([Loop(2, 4)])
    np.testing.assert_array_equal(where.slice_of(STACK, 0), STACK[2])
    np.testing.assert_array_equal(where.slice_of(STACK, 0, (1,)), STACK[1])
    # The record has the mapped axis; the value does not vary over it.
    shared = AT._replace(view=View(axes=(Axis("vmap", 4, leaves=(False,)),)))
    np.testing.assert_array_equal(shared.slice_of(np.stack([STACK[0]] * 4), 0), STACK[0])
    assert shared.mapped(0) == 0


def test_whether_the_program_differentiates_the_value():
    assert not AT.is_differentiated
    assert AT._replace(view=View(order=1)).is_differentiated
