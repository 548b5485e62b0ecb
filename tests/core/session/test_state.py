"""What the captures of a thread want, as part of JAX's cache keys."""

from __future__ import annotations

from sonde.core.session.session import with_capture_state
from sonde.core.session.state import CaptureState, capture_state


def test_what_is_looked_for_is_one_object_as_long_as_it_is_the_same():
    with with_capture_state(CaptureState(grads=True)):
        first = capture_state()
    with with_capture_state(CaptureState(grads=True)):
        assert capture_state() is first
    with with_capture_state(CaptureState(grads=False)):
        assert capture_state() is not first
    assert CaptureState(grads=True, sows=False) != first
    assert (CaptureState(grads=True), hash(CaptureState(grads=True))) == (first, hash(first))
