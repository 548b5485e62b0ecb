"""A tape has every operation that ran, and runs again with other numbers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sonde import _jax
from sonde._jax import primitives
from sonde.programs.traced import trace
from sonde.programs.unrolled import tape_of


def program(x: Any, n: Any) -> Any:
    ys = lax.scan(lambda c, row: (c + row, c * row), x[0], x, reverse=True)[1]
    grown = lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, jax.jit(jnp.tanh)(c[1]) * 2), (0, ys))[1]
    return lax.switch(n, [jnp.sin, jnp.cos, lambda v: v.T.T + 1], grown)


def test_loops_branches_and_calls_are_entered() -> None:
    x, n = jnp.arange(6.0).reshape(3, 2), jnp.int32(9)  # 9: JAX takes the last branch
    tape = tape_of(trace(program, (x, n), {}))
    np.testing.assert_allclose(tape.array(tape.results[0]), program(x, n), rtol=1e-6)
    names = [step.name for step in tape.steps]
    assert names.count("tanh") == 9 and names.count("transpose") == 2
    assert not {"scan", "while", "cond", "jit"} & set(names)
    assert {step.source.partition(":")[0] for step in tape.steps if step.name == "tanh"} == {__file__}


def test_a_tape_runs_again_from_a_value_that_is_replaced() -> None:
    tape = tape_of(trace(lambda x: jnp.sum(x * 2) + 1, (jnp.arange(3.0),), {}))
    doubled = next(step.outputs[0] for step in tape.steps if step.name == "mul")
    assert tape.again({doubled: jnp.zeros(3)})[tape.results[0]] == 1


def test_examples_that_ended_keep_what_they_had() -> None:
    """Under `vmap` a `while_loop` runs until the last example ends."""

    def looped(x: Any, n: Any) -> Any:
        return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, jnp.sin(s[1]) + 1.5), (0, x))

    args = jnp.arange(3.0), jnp.array([1, 3, 0])
    tape = tape_of(trace(jax.vmap(looped), args, {}))
    for slot, expected in zip(tape.results, jax.vmap(looped)(*args), strict=True):
        np.testing.assert_allclose(tape.array(slot), expected, rtol=1e-6)


def test_what_the_table_says_is_moved_is_moved() -> None:
    x = jnp.arange(1.0, 25.0).reshape(4, 6)

    def moves(x: Any, i: Any) -> Any:
        parts = [x.T, x.reshape(-1), x[::2], x[i], jnp.flip(x), jnp.pad(x, 1), jnp.concatenate([x, x]), x.at[i].set(9)]
        return parts, jnp.broadcast_to(x, (2, 4, 6)), jnp.split(x, 2), lax.dynamic_update_slice(x, x[:1], (i, 0))

    checked = set()
    tape = tape_of(trace(moves, (x, jnp.int32(2)), {}))
    for step in tape.steps:
        moved = _jax.moved_operands(step.name, 0, len(step.inputs))
        if step.equation is not None and moved and step.name not in ("max", "min", "clamp"):
            before = np.concatenate([tape.array(step.inputs[i]).ravel() for i in moved])
            assert set(tape.array(step.outputs[0]).ravel().tolist()) <= set(before.tolist()), step.name
            checked.add(step.name)
    assert {"transpose", "reshape", "pad", "concatenate", "rev", "scatter", "split", "dynamic_update_slice"} <= checked


def test_the_table_says_one_thing_of_a_primitive() -> None:
    names = [name for _, names in primitives._GROUPS for name in names.split()]
    assert len(names) == len(set(names)) == len(primitives._TABLE)
    assert _jax.facts_of("select_n").exact and _jax.facts_of("sonde_site").keeps_role
    assert _jax.facts_of("dot_general") == _jax.Facts()
