"""Random programs: what a capture returns is what the same program returns by hand.

`seeds.py` says which seeds were run. `make test-programs SEEDS=a:b` runs others.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from random import Random
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from tests.core import seeds
from tests.core.checking import INPUTS, N_LOOKS, check_or_reduce, check_program, run_seed
from tests.core.programs import (
    Body,
    Cond,
    CustomJvp,
    CustomVjp,
    Dead,
    Drawing,
    Grad,
    Jit,
    Jvp,
    Loop,
    Node,
    Op,
    Program,
    Remat,
    Scope,
    Shard,
    Sow,
    Vmap,
    While,
)

# ---------------------------------------------------------------------------------------------------------------------
# The tests
# ---------------------------------------------------------------------------------------------------------------------

AROUND: dict[str, Callable[[Body], Node]] = {
    "jit": lambda body: Jit(body),
    "scope": lambda body: Scope("a", body),
    "vmap": lambda body: Vmap(body, 1, 0),
    "scan": lambda body: Loop(body, 2, "scan"),
    "reverse scan": lambda body: Loop(body, 2, "scan", reverse=True),
    "fori": lambda body: Loop(body, 2, "fori"),
    "while": lambda body: While(body, "test"),
    "cond": lambda body: Cond((body, (Sow("other"),))),
    "remat": lambda body: Remat(body),
    "dead": lambda body: Dead(body),
    "custom_jvp": lambda body: CustomJvp(body, through=True),
    "custom_vjp": lambda body: CustomVjp(body, through=True),
    "grad": lambda body: Grad(body, "value_and_grad"),
    "jvp": lambda body: Jvp(body),
    "shard_map": lambda body: Shard(body, replicated_site="same"),
}
VARIANTS = {"scope", "reverse scan", "fori", "dead"}  # of others; left to the thorough run


def pairs(*, thorough: bool) -> list[Any]:
    """Every fourth pair in every run, so that each transform is around and inside of a fourth of the others."""
    chosen = []
    for (i, outer), (j, inner) in itertools.product(enumerate(AROUND), enumerate(AROUND)):
        in_two_meshes = outer == inner == "shard_map"
        forward_through_backward = outer in ("custom_jvp", "jvp") and inner == "custom_vjp"
        if in_two_meshes or forward_through_backward:
            continue  # JAX has no such programs
        if thorough == (bool(VARIANTS & {outer, inner}) or (i + j) % 4 != 0):
            chosen.append(pytest.param(outer, inner, id=f"{outer} of {inner}"))
    return chosen


def check_pair(outer: str, inner: str) -> None:
    inside: Body = (Sow("first", "tree"), AROUND[inner]((Op(0), Sow("inside", "tree"))), Sow("last", "unused"))
    program = Program((), (AROUND[outer](inside),))
    look = 5 if (len(outer) + len(inner)) % 2 else 6
    assert check_or_reduce(program, look, INPUTS[len(outer + inner) % 3])


@pytest.mark.every(2)
@pytest.mark.parametrize(("outer", "inner"), pairs(thorough=False))
def test_transforms_in_one_another(outer: str, inner: str) -> None:
    check_pair(outer, inner)


@pytest.mark.thorough
@pytest.mark.parametrize(("outer", "inner"), pairs(thorough=True))
def test_every_transform_and_variant_in_every_other(outer: str, inner: str) -> None:
    check_pair(outer, inner)


@pytest.mark.parametrize("seed", seeds.QUICK)
def test_random_program(seed: int) -> None:
    run_seed(seed, seeds.DEPTH)


@pytest.mark.thorough
@pytest.mark.parametrize("chosen", seeds.in_chunks(seeds.THOROUGH), ids=str)
def test_many_random_programs(chosen: range) -> None:
    checked = [run_seed(seed, seeds.DEPTH) for seed in chosen if seed not in seeds.NEVER_END]
    assert sum(checked) >= 0.9 * len(checked), "nearly all of them are programs that JAX can run"


@hypothesis.settings(max_examples=5, database=None, deadline=None, derandomize=True)
@hypothesis.given(st.randoms(use_true_random=False), st.integers(0, N_LOOKS - 1))
def test_programs_that_hypothesis_draws(random: Random, look: int) -> None:
    check_program(Drawing(random).program(2), look, INPUTS[0])
