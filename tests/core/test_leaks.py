"""Repeating a call with fresh functions and models does not fill the memory."""

from __future__ import annotations

from collections.abc import Generator

import jax
import pytest
from tests.core.leaking import CASES, Held, growth

import sonde


@pytest.fixture(autouse=True)
def small_caches() -> Generator[None]:
    """Programs are kept up to a bound: a small one, which a few calls reach."""
    sonde.cache_clear()
    before = sonde.set_cache_bound(2**23)
    yield
    sonde.set_cache_bound(before)


# One for every place that something is kept in; all of them are done a thousand times in `make test-thorough`.
# Eager cond, while and scan are left to the thorough run: JAX itself keeps a program of every call there, and what its
# own bounded caches drop meanwhile depends on the tests before.
QUICK = (
    "capture of a lambda",
    "capture with a fresh reduce",
    "capture of the gradient of a fresh jitted function",
    "capture of a jitted method",
    "capture inside",
    "a capture that fails",
    "an edit",
    "features",
    "a report",
    "nnx.capture",
    "a captured nnx step",
    "linen's capture_intermediates",
)


def check(name: str, times: int, before: int) -> None:
    """Does something many times, `before` of them to fill the caches that are bounded."""
    case = CASES[name]
    if case.plain is None:
        grown, plain = growth(case.do, times, before), Held(0, 0, 0)
    else:  # JAX's own caches are bounded: a second run in full ones would seem to keep less
        jax.clear_caches()
        grown = growth(case.do, times, before)
        jax.clear_caches()
        plain = growth(case.plain, times, before)
    # A cache may still settle; what a call leaves behind shows as more than one object for every call. Where JAX keeps
    # a program for every call, that program has the recorded values too, and is that much larger.
    assert grown.objects < plain.objects * 1.1 + times, (grown, plain)
    assert grown.arrays <= plain.arrays and grown.programs <= plain.programs, (grown, plain)


@pytest.mark.every(2)
@pytest.mark.parametrize("name", QUICK)
def test_nothing_is_left_behind(name: str) -> None:
    check(name, 8, before=17 if "reduce" in name else 3)


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_nothing_is_left_behind_by_a_thousand(name: str) -> None:
    check(name, 1000, before=17)
