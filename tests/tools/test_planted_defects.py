"""`first_nonfinite` in random programs with one planted defect: path, call, iteration, example, direction and line."""

from __future__ import annotations

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.tools.planted import INPUT, Planted, planted

from sonde import first_nonfinite

FEW = range(6)
# Here the program goes on with the copy of a function that has no sites.
TRACED_TWICE = (29,)
MANY = range(100)
MANY_MORE = range(6, 1000)
# These put Inf in as a constant, as masks do: what is named may be the operation that made NaN of it.
WRITTEN = ("one_element", "exploding_rule")
DEFECTS = "defects.py"


def check(program: Planted) -> bool:
    """Checks the operation and its line; returns whether path, call, iteration and example are right as well."""
    look_for = first_nonfinite(program.make())
    calm = look_for(jnp.asarray(INPUT), jnp.asarray(False))
    assert calm is None, f"{program}\nnot armed, but found: {calm}"
    found = look_for(jnp.asarray(INPUT), jnp.asarray(True))
    results = jax.tree.leaves(program.make()(jnp.asarray(INPUT), jnp.asarray(True)))
    if all(np.isfinite(x).all() for x in results):  # what was planted is in no result
        assert found is None, f"{program}\nfound: {found}"
        return True
    assert found is not None, f"{program}\nfound nothing"
    if program.defect in WRITTEN and found.operation != "constant":
        assert any(DEFECTS in cause or program.file in cause for cause in found.causes), f"{program}\nfound: {found}"
        return True
    # A rule of a custom derivative has the line of the call: JAX does not keep others.
    assert DEFECTS in found.source or program.file in found.source, f"{program}\nfound: {found}"
    got = (found.path, found.gradient, found.call, found.iteration, found.example)
    return got == (program.path, program.gradient, program.call, program.iteration, program.example)


@pytest.mark.every(2)
@pytest.mark.parametrize("seed", [*FEW, *TRACED_TWICE])
def test_the_place_is_found(seed):
    assert check(planted(seed))


@pytest.mark.thorough
@pytest.mark.parametrize("seeds", [range(i, i + 25) for i in MANY_MORE[::25]], ids=lambda seeds: str(seeds[0]))
def test_the_place_is_found_in_many_more(seeds):
    # In about one program of a hundred, all with custom derivatives or recomputation, the site is named wrongly or not
    # at all, though the operation and its line are right.
    assert sum(not check(planted(seed)) for seed in seeds) <= 2


def test_what_the_programs_are_made_of():
    """Every way of nesting, and every defect, is among them several times."""
    programs = [planted(seed) for seed in MANY]
    assert Counter(p.gradient for p in programs) == {False: 50, True: 50}
    around = Counter(kind for p in programs for kind in set(p.trail))
    kinds = ["jit", "function", "scan", "map", "fori", "traced fori", "while", "while test", "cond", "vmap"]
    kinds += ["remat", "custom_vjp", "custom_jvp", "grad", "scope"]
    assert set(around) == set(kinds) and min(around.values()) >= 4
    assert min(Counter(p.mode for p in programs).values()) >= 5 and len({p.mode for p in programs}) == 5
    assert min(Counter(p.defect for p in programs).values()) >= 2 and len({p.defect for p in programs}) == 14
    assert sum(len(p.iteration) > 1 for p in programs) >= 10
    assert sum(p.call > 0 for p in programs) >= 15
    assert sum(len(p.example) > 0 for p in programs) >= 10
