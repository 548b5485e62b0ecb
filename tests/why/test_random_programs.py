"""Random nested programs with one planted fault, and intended Infs around it that must never be blamed.

A program is written as text, so that the planted line is known. `now` is true only where the fault strikes: in one
iteration of every loop and one example of every `vmap` around it.
"""

from __future__ import annotations

import linecache
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import sonde
from sonde import first_nonfinite

INPUT = jnp.array([0.3, 0.8, 0.5])

# What strikes at `now`: the text, and the operation that it is.
FAULTS = [
    ("x = x / jnp.where(now, 0.0, 1.0)", "div"),
    ("x = jnp.log(jnp.where(now, -1.0, 2.0 + x))", "log"),
    ("x = x * jnp.exp(jnp.where(now, 100.0, 0.0))", "exp"),
    ("x = jnp.sqrt(jnp.where(now, -1.0, 1.0) * (1.0 + x * x))", "sqrt"),
    ("x = x + jnp.arctanh(jnp.where(now, 2.0, 0.1))", "atanh"),
]
# Intended Infs and NaNs, none of which reaches the result.
DECOYS = [
    "x = x * jax.nn.softmax(jnp.where(x > -9, jnp.sin(x), -jnp.inf)) * 3",
    "x = x + 0.1 * jnp.where(x < 1e9, x, jnp.inf)",
    "x = x + 0.1 * jnp.where(x > -1e9, x, jnp.log(x * 0.0))",
    "x = jnp.minimum(jnp.full(3, jnp.inf), x)",
    "x = x + lax.fori_loop(0, 3, lambda i, best: jnp.minimum(best, x[i]), jnp.inf)",
    "x = jnp.maximum(jnp.array([-jnp.inf, 0.0, -jnp.inf]), x)",
    "x = x + jnp.exp(jnp.array([-jnp.inf, 1.0, -jnp.inf])) * 0.01",
    "x = (jnp.concatenate([jnp.array([jnp.nan]), x]))[1:]",
    "x = x + 0.1 * jnp.nan_to_num(jnp.where(x < 1e9, jnp.nan, 0.0))",
    "x = x + 0.1 * jnp.sort(jnp.concatenate([x, jnp.array([jnp.inf, jnp.inf])]))[0]",
]


def indent(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]


def wrap(kind: str, lines: list[str], depth: int, random: Random) -> tuple[list[str], tuple[int, ...]]:
    """Code around some lines of code on `x` and `now`; and the iteration in which it then strikes."""
    name, n = f"f{depth}", random.randint(1, 3)
    k = random.randrange(n)
    body = [f"def {name}(x, now):", *indent([*lines, f"return sow(x, 'end{depth}')"])]
    if kind == "scan":
        step = f"lambda c, i: ({name}(c, now & (i == {k})), None)"
        return [*body, f"x = lax.scan({step}, x, jnp.arange({n}))[0]"], (k,)
    if kind == "rows":
        step = f"lambda c, i: (c, {name}(c + 0.1 * i, now & (i == {k})))"
        return [*body, f"x = sow(lax.scan({step}, x, jnp.arange({n}))[1], 'rows{depth}').sum(0)"], (k,)
    if kind == "while":
        step = f"lambda s: (s[0] + 1, {name}(s[1], now & (s[0] == {k})))"
        return [*body, f"x = lax.while_loop(lambda s: s[0] < {n}, {step}, (0, x))[1]"], (k,)
    if kind == "vmap":
        inside = f"jax.vmap(lambda y, i: {name}(y, now & (i == {k})))"
        return [*body, f"x = {inside}(jnp.stack([x] * {n}), jnp.arange({n})).mean(0)"], ()
    if kind == "cond":
        return [*body, f"x = lax.cond(x.sum() > -99, {name}, lambda x, now: x * jnp.inf, x, now)"], ()
    call = {"jit": f"jax.jit({name})", "remat": f"jax.checkpoint({name})", "plain": name}[kind]
    return [*body, f"x = {call}(x, now)"], ()


def program(seed: int) -> tuple[str, int, str, tuple[int, ...], Any]:
    """The text, the line of the fault, its operation, the iteration, and the function."""
    random = Random(seed)
    fault, operation = random.choice(FAULTS)
    lines = [*random.sample(DECOYS, 1), fault + "  # FAULT", *random.sample(DECOYS, 1)]
    iteration: tuple[int, ...] = ()
    for depth in range(random.randint(1, 3)):
        kind = random.choice(["scan", "rows", "while", "vmap", "cond", "jit", "remat", "plain"])
        lines, added = wrap(kind, lines, depth, random)
        lines = [*random.sample(DECOYS, 1), *lines, *random.sample(DECOYS, random.randint(0, 1))]
        iteration = (*added, *iteration)
    text = "\n".join(["def program(x, now):", *indent([*lines, "return x"])]) + "\n"
    (line,) = [i for i, written in enumerate(text.splitlines(), 1) if "# FAULT" in written]
    file = f"random_program_{seed}.py"
    names: dict[str, Any] = {"jax": jax, "jnp": jnp, "lax": lax, "sow": sonde.sow}
    exec(compile(text, file, "exec"), names)
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    f = names["program"]
    run = random.choice([f, jax.jit(f)])
    return text, line, operation, iteration, run


def check(seed: int) -> None:
    text, line, operation, iteration, run = program(seed)
    shown = f"seed {seed}\n{text}"
    assert np.isfinite(run(INPUT, jnp.asarray(False))).all(), shown
    assert not np.isfinite(run(INPUT, jnp.asarray(True))).all(), shown
    assert first_nonfinite(run)(INPUT, jnp.asarray(False)) is None, shown
    found = first_nonfinite(run)(INPUT, jnp.asarray(True))
    got = found.source, found.operation, found.variable, found.iteration
    expected = f"random_program_{seed}.py:{line}", operation, "x", iteration
    assert got == expected, f"{shown}\n{found}"

    # Captures and edits have left compiled programs by then; a search must see their operations all the same.
    same = sonde.edit(run, {"end0": lambda x: x})
    records = sonde.capture(same)(INPUT, jnp.asarray(True))[1]
    found = first_nonfinite(same)(INPUT, jnp.asarray(True))
    got = found.source, found.operation, found.variable, found.iteration
    assert got == expected, f"after a capture: {shown}\n{found}"
    assert found.path in records, shown


@pytest.mark.every(2)
@pytest.mark.parametrize("seed", range(8))
def test_the_planted_line_is_named(seed):
    check(seed)


@pytest.mark.thorough
@pytest.mark.parametrize("seeds", [range(i, i + 25) for i in range(8, 308, 25)], ids=lambda seeds: str(seeds[0]))
def test_the_planted_line_is_named_in_many_more(seeds):
    for seed in seeds:
        check(seed)
