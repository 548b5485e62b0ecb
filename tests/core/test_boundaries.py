"""A jitted function that is called with modules in several places."""

import jax
from tests.core.frozen import X, check, make

import sonde


def test_one_jitted_function_and_many_modules_is_traced_once_per_place():
    traces = []

    @jax.jit
    def run(layer, x):
        traces.append(1)
        return layer(x)

    for _ in range(2):
        check(sonde.capture(make(run))(X)[1])
    assert len(traces) == 3
