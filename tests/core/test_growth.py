"""What a capture costs grows with the number of sites, edits, scopes and frames, and not faster.

Counted are lines and calls of Python, which do not depend on the machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest

import sonde

X = jnp.float32(1.0)


def steps(run: Callable[[], Any]) -> int:
    """How many lines and calls of Python something takes."""
    run()  # what is done once
    count = 0

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return count


def of_edits(n: int) -> Callable[[], Any]:
    f = of_many(n)
    records = sonde.capture(f)(X)[1]
    return lambda: sonde.edit(f, records)(X)


def of_many(n: int) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        for i in range(n):
            x = sonde.sow(x, f"h{i}")
        return x

    return f


def of_patterns(n: int) -> Callable[[], Any]:
    patterns = [f"h{i}" for i in range(n)]
    return lambda: sonde.capture(of_many(n), *patterns)(X)


def of_frames(n: int) -> Callable[[], Any]:
    """Calls in one another, each in a scope."""

    def f(x: Any, left: int) -> Any:
        if not left:
            return x
        with sonde.scope("a"):
            return f(x, left - 1)

    return lambda: sonde.capture(lambda x: f(x, n))(X)


def of_frames_around(n: int) -> Callable[[], Any]:
    """A capture with scopes, below frames that have none."""

    def f(x: Any) -> Any:
        for _ in range(50):
            with sonde.scope("a"):
                pass
        return x

    def deep(left: int) -> Any:
        return deep(left - 1) if left else sonde.capture(f)(X)

    return lambda: deep(n)


@pytest.mark.parametrize("case", [of_edits, of_patterns, of_frames, of_frames_around])
def test_costs_are_linear(case: Callable[[int], Callable[[], Any]]) -> None:
    few, some, many = [steps(case(n)) for n in (40, 80, 160)]
    assert many - some < 2.2 * (some - few), (few, some, many)


def test_an_unused_heap_costs_nothing():
    """After captures inside functions, collections of garbage are searched for functions only for a while."""
    import gc

    from sonde.inside import heap

    def marked(x: Any) -> Any:
        y = x * 2
        return y

    for _ in range(2):  # also when it begins again
        assert list(sonde.capture(marked, inside=marked)(X)[1])
        assert heap.HEAP._at_collection in gc.callbacks
        for _ in range(heap._UNUSED + 1):
            gc.collect(1)
        assert heap.HEAP._at_collection not in gc.callbacks
