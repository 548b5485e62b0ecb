"""What is done again and again with fresh functions and models does not fill the memory."""

from __future__ import annotations

import pytest
from tests.core.leaking import CASES, growth


def check(name: str, times: int, before: int) -> None:
    """Does something many times, `before` of them to fill the caches that are bounded."""
    case = CASES[name]
    grown, plain = growth(case.do, times, before), growth(case.plain, times, before)
    # A cache may still settle; what a call leaves behind shows as more than one object for every call. Where JAX keeps
    # a program for every call, that program has the recorded values too, and is that much larger.
    assert grown.objects < plain.objects * 1.1 + times, (grown, plain)
    assert grown.arrays <= plain.arrays and grown.programs <= plain.programs, (grown, plain)


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_left_behind(name: str) -> None:
    check(name, 12, before=17 if "reduce" in name else 4)


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_nothing_is_left_behind_by_a_thousand(name: str) -> None:
    check(name, 1000, before=17)
