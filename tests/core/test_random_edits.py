"""Random programs with all their sites edited: the result is that of the program with the edit written in by hand."""

from __future__ import annotations

import pytest
from tests.core import seeds
from tests.core.editing import run_edit_seed


@pytest.mark.every(2)
@pytest.mark.parametrize("seed", seeds.QUICK)
def test_random_edit(seed: int) -> None:
    run_edit_seed(seed, seeds.DEPTH)


@pytest.mark.thorough
@pytest.mark.parametrize("chosen", seeds.in_chunks(seeds.THOROUGH), ids=str)
def test_many_random_edits(chosen: range) -> None:
    checked = [run_edit_seed(seed, seeds.DEPTH) for seed in chosen if seed not in seeds.NEVER_END]
    assert sum(checked) >= 0.8 * len(checked), "nearly all of them are programs that JAX can run"
