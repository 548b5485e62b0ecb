"""Sessions of threads, tasks and nested blocks, and what is left of them."""

from __future__ import annotations

import asyncio
import contextlib
import weakref

import jax
import jax.numpy as jnp
from tests.core.comparing import check_nothing_is_left, equal

from sonde import _jax, capture, edit, scope, sow
from sonde.core.session.session import SESSIONS, CaptureState, Session, capture_state, with_capture_state

X = jnp.array([0.5, -1.0, 2.0])


def test_tasks_that_capture_at_once():
    async def work(number):
        found = []
        for i in range(3):
            await asyncio.sleep(0)
            _, records = capture(lambda x: sow(x * number, f"t{number}"))(X + i)
            found.append(records)
            await asyncio.sleep(0)
            assert capture_state() is None
        return found

    async def main():
        return await asyncio.gather(*map(work, range(3)))

    for number, found in enumerate(asyncio.run(main())):
        for i, records in enumerate(found):
            assert list(records) == [f"t{number}"]
            equal(records[f"t{number}"].value, (X + i) * number)
    check_nothing_is_left()


def depth():
    """How many sessions this thread has."""
    session, n = SESSIONS.current(), 0
    while session is not None:
        session, n = session.outer, n + 1
    return n


def test_what_is_looked_for_holds_for_a_block_and_blocks_nest():
    outer, inner = CaptureState(grads=False), CaptureState(grads=True, depth=2)
    with with_capture_state(outer):
        with with_capture_state(inner):
            assert (capture_state(), depth()) == (inner, 2)
            with with_capture_state(None):
                assert capture_state() is None
        assert (capture_state(), depth()) == (outer, 1)
    assert (capture_state(), depth()) == (None, 0)


def test_a_block_leaves_the_thread_as_it_was_whatever_was_left_open():
    with Session():
        with_capture_state(CaptureState(grads=False)).__enter__()
        scope("left/open").__enter__()
        assert capture_state() is not None
    assert (capture_state(), depth()) == (None, 0)
    check_nothing_is_left()


def test_nothing_is_left_of_a_session():
    sessions = []

    def inner(x):
        sessions.append(weakref.ref(SESSIONS.current()))
        return sow(x * 2, "h")

    def run(x):
        sessions.append(weakref.ref(SESSIONS.current()))
        y = capture(inner)(x)[0]
        return jax.jit(lambda y: edit(inner, {"h": y})(y))(y)

    def fails(x):
        run(x)
        raise ValueError

    for _ in range(2):
        capture(run, inside=run)(X)
    with contextlib.suppress(ValueError):
        capture(fails)(X)
    assert len(sessions) == 9
    assert [session() for session in sessions] == [None] * 9
    assert not SESSIONS.threads
    check_nothing_is_left()


def test_a_session_that_an_interrupt_left_open_is_ended_by_the_one_around():
    class Changes:
        def __init__(self):
            self.users = set()
            self.enter, self.leave = self.users.add, self.users.discard

    changes = Changes()
    with Session() as outer:
        outer.begin(CaptureState(grads=False), _jax.current_trace())
        inner = Session()
        inner.__enter__()
        inner.change(changes)
        inner.begin(CaptureState(grads=True), _jax.current_trace())
        assert changes.users == {inner}
    assert not changes.users
    assert (capture_state(), depth()) == (None, 0)


def test_what_is_looked_for_is_one_object_as_long_as_it_is_the_same():
    with with_capture_state(CaptureState(grads=True)):
        first = capture_state()
    with with_capture_state(CaptureState(grads=True)):
        assert capture_state() is first
    with with_capture_state(CaptureState(grads=False)):
        assert capture_state() is not first
    assert CaptureState(grads=True, sows=False) != first
    assert (CaptureState(grads=True), hash(CaptureState(grads=True))) == (first, hash(first))
