"""The capture state of threads, tasks and nested blocks."""

from __future__ import annotations

import asyncio

import jax.numpy as jnp
from tests.core.comparing import check_nothing_is_left, equal

from sonde import capture, scope, sow
from sonde.core.session.state import RUNNING_CAPTURES, CaptureState, capture_state, unchanged_after, with_capture_state

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


def test_what_is_looked_for_holds_for_a_block_and_blocks_nest():
    outer, inner = CaptureState(grads=False), CaptureState(grads=True, depth=2)
    with with_capture_state(outer):
        with with_capture_state(inner):
            assert (capture_state(), RUNNING_CAPTURES.mine()) == (inner, 2)
            with with_capture_state(None):
                assert capture_state() is None
        assert (capture_state(), RUNNING_CAPTURES.mine()) == (outer, 1)
    assert (capture_state(), RUNNING_CAPTURES.mine()) == (None, 0)


def test_what_is_looked_for_is_one_object_as_long_as_it_is_the_same():
    with with_capture_state(CaptureState(grads=True)):
        first = capture_state()
    with with_capture_state(CaptureState(grads=True)):
        assert capture_state() is first
    with with_capture_state(CaptureState(grads=False)):
        assert capture_state() is not first
    assert CaptureState(grads=True, sows=False) != first
    assert (CaptureState(grads=True), hash(CaptureState(grads=True))) == (first, hash(first))


def test_a_block_leaves_the_thread_as_it_was_whatever_was_left_open():
    with unchanged_after():
        with_capture_state(CaptureState(grads=False)).__enter__()
        scope("left/open").__enter__()
        assert capture_state() is not None
    assert (capture_state(), RUNNING_CAPTURES.mine()) == (None, 0)
    check_nothing_is_left()
