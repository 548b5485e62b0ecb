"""An interrupt at any point of what begins and ends a capture leaves nothing behind."""

from __future__ import annotations

import itertools
import os
import sys

import jax.numpy as jnp
import numpy as np
import pytest

import sonde
from sonde import _jax
from sonde.core.session import run
from sonde.core.session.session import SESSIONS, capture_state
from sonde.inside import code_swap as swapping

X = jnp.linspace(0.1, 1.0, 4)
FILES = tuple(
    os.path.join(os.path.dirname(sonde.__file__), *name.split("/"))
    for name in (
        "inside/active_requests.py",
        "inside/code_swap.py",
        "inside/instrumented.py",
        "core/session/session.py",
        "_jax/in_place.py",
    )
)


def inner(x):
    y = x * 2
    return y


def outer(x):
    def local(v):
        return v + 1

    z = inner(local(x))
    return z


class Interrupt:
    """Raises KeyboardInterrupt at one of the points where Python looks for signals, in some files.

    Python looks when a function begins, and after a call of a function that is written in C. Left out are
    the search of the heap, which has a point for every function of the process, and generators, which swallow it.
    """

    def __init__(self, n):
        self.left = n

    def __enter__(self):
        sys.setprofile(self._event)

    def __exit__(self, *_):
        sys.setprofile(None)

    def _event(self, frame, event, arg):
        code = frame.f_code
        if event in ("call", "c_return") and code.co_filename in FILES and code.co_name not in ("_add", "<genexpr>"):
            self.left -= 1
            if self.left == 0:
                sys.setprofile(None)
                raise KeyboardInterrupt


PARTS = 12


@pytest.mark.every(PARTS)
@pytest.mark.parametrize("part", range(PARTS))
def test_an_interrupt_at_any_point(part):
    functions = (inner, outer)
    before = [f.__code__ for f in functions]
    owners = {id(c.owner): c for c in run._changes.changes}.values()
    plain = [dict(vars(c.owner)) if not isinstance(c.owner, dict) else dict(c.owner) for c in owners]
    capture = sonde.capture(outer, inside=[inner, outer])
    capture(X)
    interrupts = 0
    for n in itertools.count(1 + part, PARTS):
        trap = Interrupt(n)
        try:
            with trap:
                capture(X)
        except KeyboardInterrupt:
            interrupts += 1
        assert [f.__code__ for f in functions] == before, n
        assert all(f.__code__ is code for f, code in zip(functions, before)), n
        assert not swapping._swapped, n
        assert capture_state() is None and not SESSIONS.threads and _jax.current_trace() is _jax.eval_trace, n
        now = [dict(vars(c.owner)) if not isinstance(c.owner, dict) else dict(c.owner) for c in owners]
        assert now == plain, n
        if trap.left > 0:
            break
    assert interrupts > 100 // PARTS
    result, records = capture(X)
    np.testing.assert_array_equal(result, outer(X))
    assert "outer/local/return" in records
