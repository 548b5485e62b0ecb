"""What is done again and again with fresh functions and models does not fill the memory."""

from __future__ import annotations

import pytest
from tests.core.leaking import CASES, growth


def check(case: str, times: int) -> None:
    grown = growth(CASES[case], times)
    # A cache may still settle; what a call leaves behind shows as more than one object for every call.
    assert grown.objects < times, grown
    assert grown.arrays <= 0 and grown.programs <= 0, grown


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_left_behind(case: str) -> None:
    check(case, 12)


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES)
def test_nothing_is_left_behind_by_a_thousand(case: str) -> None:
    check(case, 1000)
