"""Random programs with random models compute what they compute with Flax: few in each run, many thorough."""

from __future__ import annotations

import flax.nnx as flax_nnx
import jax
import pytest
from tests.comparing_libraries import check
from tests.nnx.random_models import inputs, program

from sonde import nnx as sonde_nnx


def agrees(seed, *, precise):
    with jax.enable_x64(precise):
        run = lambda nnx: program(nnx, seed, precise=precise)
        return check(run, flax_nnx, sonde_nnx, inputs(seed, precise=precise), precise=precise)


@pytest.mark.parametrize("seed", [0, 49])
def test_random_models(seed):
    assert agrees(seed, precise=False)


@pytest.mark.thorough
@pytest.mark.parametrize("precise", [True, False], ids=["doubles", "mixed"])
@pytest.mark.parametrize("first", range(0, 500, 50))
def test_many_random_models(first, precise):
    ran = sum(agrees(seed, precise=precise) for seed in range(first, first + 50))
    assert ran >= 40
