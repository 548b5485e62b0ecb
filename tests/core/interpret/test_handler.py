"""What all handlers share: paths, tokens, what was met, and passing sites on."""

import numpy as np
import pytest
from tests.core.making import site_of

import sonde
from sonde.core.interpret.handler import Handler
from sonde.core.interpret.where import Loop, Position
from sonde.core.marks.scopes import scope
from sonde.core.marks.site import View
from sonde.core.session.session import CaptureState, with_capture_state
from sonde.errors import NoSuchSiteError

A, B = site_of(np.ones(2), "a", grads=True), site_of(np.ones(2), "b", grads=True)


def test_tokens_tell_calls_apart():
    handler = Handler(None, ())
    first, second = handler.token(A), handler.token(B)
    assert int(first) == int(second) == 1  # of two sites: they need not be told apart
    again = [int(handler.token(A)) for _ in range(3)]  # a jaxpr that was inlined
    assert len({1, *again}) == 4


def test_what_is_set_aside_is_given_out_once():
    handler = Handler(None, ())
    starts = [int(handler.allot(span)) for span in (3, 1, 2)]
    taken = [n for start, span in zip(starts, (3, 1, 2)) for n in range(start, start + span)]
    assert len(set(taken)) == 6
    assert 1 not in taken  # that of the sites of the handler itself
    assert handler.span == 7


def test_a_child_starts_from_its_base_and_has_its_own_items():
    handler = Handler(None, ("a",))
    handler.meet(A, View(), ())
    child = handler.at(Position(prefix="in/")).child(base=100)
    assert int(child.token(A)) == 100
    assert child.meet(B, View(), ()).path == "in/b"
    child.items.append("item")
    assert handler.items == []
    assert list(handler.met.paths) == ["a"]
    handler.met.update(child.met)
    assert list(handler.met.paths) == ["a", "in/b"]
    assert child.met.has_met(A)
    assert not child.met.alone().has_met(A)


def test_paths_count_from_where_the_handler_begins():
    with with_capture_state(CaptureState(grads=False)), scope("around"):
        handler = Handler(None, ()).begin(1)
        with scope("x"), scope("y"):
            assert handler.position.path() == "x/y/"
        assert handler.position.path() == ""


def test_a_scope_with_a_star_names_the_next_loop():
    handler = Handler(None, ())
    with with_capture_state(CaptureState(grads=False)), scope("blocks/*"):
        assert handler.position.loop_path() == "blocks/"
        inside = handler.entering(Loop(None, 5))
        assert inside.position.loops == (Loop(None, 5, path="blocks"),)
        assert handler.entering().position.loop_name == "blocks"  # a jitted function: the loop may be inside
    where = inside.child().meet(A, View(), ())
    assert where.path == "blocks/*/a"
    assert where.lengths == (5,)
    assert inside.position.lengths_at("other/a") == ()
    assert handler.position.loop_path() is None


def test_a_pattern_that_chose_nothing_is_an_error():
    handler = Handler(None, ("a", "c"))
    assert handler.chosen(handler.meet(A, View(), ())) == ["a"]
    assert handler.chosen(handler.meet(B, View(), ())) == []
    with pytest.raises(NoSuchSiteError, match="'c' matches none of the program's 2 sites"):
        handler.finish()
    Handler(None, ()).finish()


def test_a_site_may_be_for_some_captures_only():
    inner = site_of(np.ones(2), depths=frozenset({2}))
    assert [Handler(None, ()).begin(d).sees(inner) for d in (1, 2, 3)] == [False, True, False]
    assert Handler(None, ()).begin(3).sees(A)


def test_a_handler_by_hand_sees_what_passes():
    def f(x):
        with sonde.scope("s"):
            return sonde.sow(x + 1, "h") * sonde.sow(x, "g")

    handler = Handler(None, ())
    result = sonde.core.run_with(handler, f, (np.float32(3),), {})
    assert float(result) == 12.0
    assert list(handler.met.paths) == ["s/h", "s/g"]
