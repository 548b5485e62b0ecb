"""What a call of a module takes and returns, as sites."""

import jax
import numpy as np
from tests.core.frozen import Layer, X, call, make

from sonde.core.capture import run_with
from sonde.core.collect import Collect
from sonde.core.module_paths import Request
from sonde.core.record import make_records

jitted = jax.jit(call)


def test_what_a_call_takes_and_returns():
    model = make(jitted)

    def run(request):
        _, handler = run_with(lambda depth: Collect((), depth=depth), model, (X,), {}, request=request)
        return make_records(handler.items, handler.met)

    records = run(Request(methods=frozenset({"__call__"})))
    layers = [f"parts/layers/{i}/{name}" for i in range(3) for name in ("in", "y", "out")]
    assert list(records) == ["in", *layers, "out"]
    np.testing.assert_array_equal(records["parts/layers/1/in"].value, records["parts/layers/0/out"].value)
    code = Layer.forward.__code__
    assert records["parts/layers/0/out"].source == f"{code.co_filename}:{code.co_firstlineno}"
    assert list(run(None)) == [path for path in layers if path.endswith("y")]
