"""Trace levels as objects."""

import jax
from flax.nnx import tracers as flax_tracers

from sonde.nnx import tracers


def levels(module):
    outside, found = module.TraceState(), []

    def f(x):
        inside = module.TraceState()
        found.extend([outside.is_valid(), inside.is_valid(), inside == outside])
        found.append(module.current_jax_trace() == inside.jax_trace)
        return x

    jax.jit(f)(1.0)
    return [*found, outside.is_valid(), outside == module.TraceState()]


def test_levels_are_told_apart_as_in_flax():
    assert levels(tracers) == levels(flax_tracers)
    assert "TraceState" in repr(tracers.TraceState())
