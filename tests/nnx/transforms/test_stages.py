"""What `lower`, `trace` and `compile` of a jitted function return."""

import jax.numpy as jnp
import pytest
from tests.nnx.transforms.traces import Model, traced

from sonde import nnx


def test_lower_trace_and_compile():
    f, _ = traced()
    model = Model()
    lowered = f.lower(model, 1.0)
    assert "func" in lowered.as_text()
    compiled_f = lowered.compile()
    assert float(compiled_f(model, 1.0)) == 4
    assert int(model.count) == 1
    assert "mul" in str(f.trace(model, 1.0).jaxpr)
    assert f.eval_shape(model, 1.0).shape == ()
    assert int(model.count) == 1


def test_stages_of_a_partial():
    model = nnx.Dict(w=nnx.Param(jnp.ones(2)), n=nnx.Variable(jnp.array(0)))

    def f(m, x):
        m.n[...] += 1
        return m.w * x

    g = nnx.jit_partial(f, model)
    assert g.eval_shape(2.0).shape == (2,) and g.trace(2.0).lower() is not None
    assert float(g.lower(2.0).compile()(3.0)[0]) == 3.0 and int(model.n) == 1


def test_a_stage_shows_the_one_of_jax():
    lowered = nnx.jit(lambda x: x * 2).lower(1.0)
    assert repr(lowered).startswith(f"{type(lowered).__name__}(")
    assert "multiply" in lowered.as_text()
    with pytest.raises(AttributeError):
        lowered._not_there
