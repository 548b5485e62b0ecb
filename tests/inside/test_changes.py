"""What is changed in other libraries, tried on stand-ins for those that are not installed here."""

from __future__ import annotations

import collections
import types

import jax
import jax.numpy as jnp

import sonde
from sonde.inside.libraries.changes import compile_as_written, count_own_traces


def doubled(x):
    y = x * 2
    return y


def test_traces_of_captures_are_not_counted() -> None:
    asserts = types.SimpleNamespace(TRACE_COUNTER=collections.Counter())
    (change,) = count_own_traces(asserts)  # type: ignore[arg-type]

    @jax.jit
    def counted(x):
        change.new[7] += 1  # as `chex.assert_max_traces` does
        return doubled(x)

    sonde.capture(counted, inside=doubled)(jnp.ones(2))
    assert asserts.TRACE_COUNTER[7] == 0
    counted(jnp.ones(2))
    assert asserts.TRACE_COUNTER[7] == change.new[7] == 1
    sonde.capture(counted, inside=doubled)(jnp.ones(3))
    assert asserts.TRACE_COUNTER[7] == 1


def test_compilers_of_python_see_code_without_marks() -> None:
    bytecode = types.SimpleNamespace(get_code_object=lambda function: function.__code__)
    (change,) = compile_as_written(bytecode)  # type: ignore[arg-type]
    own, seen = doubled.__code__, []

    def f(x):
        seen.append((change.new(doubled), doubled.__code__))
        return doubled(x)

    _, records = sonde.capture(f, inside=doubled)(jnp.ones(2))
    assert "doubled/y" in records and seen[0][0] is own and seen[0][1] is not own
    assert change.new(doubled) is own and change.new(f) is f.__code__
