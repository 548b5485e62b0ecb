"""Random modules have the initial values, outputs, variables and gradients of Flax: few in each run, many thorough."""

from __future__ import annotations

import flax.linen as flax_nn
import jax
import pytest
from tests.comparing_libraries import check
from tests.linen.against_flax import KEYS
from tests.linen.random_modules import everything, inputs

from sonde import linen as sonde_nn


def agrees(seed, *, precise):
    with jax.enable_x64(precise):
        run = lambda nn: everything(nn, seed, precise=precise, rngs=KEYS)
        return check(run, flax_nn, sonde_nn, inputs(seed, precise=precise), precise=precise)


@pytest.mark.parametrize("seed", [2])
def test_random_modules(seed):
    assert agrees(seed, precise=True)


@pytest.mark.thorough
@pytest.mark.parametrize("precise", [True, False], ids=["doubles", "mixed"])
@pytest.mark.parametrize("first", range(0, 500, 50))
def test_many_random_modules(first, precise):
    ran = sum(agrees(seed, precise=precise) for seed in range(first, first + 50))
    assert ran >= 40
