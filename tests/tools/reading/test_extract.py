"""Features are extracted, and unused code is removed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.tools.models import HIDDEN, X, every_face, forward

import sonde
from sonde import nnx, sow
from sonde.errors import NoSuchSiteError
from sonde.tools import extract


@every_face
def test_every_face(face):
    found = extract(forward(face), {"hidden": "features"})(X)
    assert list(found) == ["features"]
    np.testing.assert_allclose(found["features"], HIDDEN)


def deep(x):
    for i in range(4):
        with sonde.scope(f"layers/{i}"):
            x = sow(jnp.tanh(x @ x), "h")
    return jnp.linalg.inv(x)


def test_the_rest_is_removed():
    x = jnp.ones((32, 32))
    flops = lambda f: jax.jit(f).lower(x).compile().cost_analysis()["flops"]
    half = flops(extract(jax.jit(deep), {"layers/1/h": "h"}))
    assert half == flops(lambda x: jnp.tanh(jnp.tanh(x @ x) @ jnp.tanh(x @ x)))
    assert half < 0.6 * flops(extract(deep, {"layers/3/h": "h"}))


def test_calls_loops_and_patterns():
    def f(x, *, scale):
        step = lambda c, _: (sow(c * scale, "loop"), None)
        x = jax.lax.scan(step, sow(sow(x, "twice") + 1, "twice"), length=3)[0]
        return x

    found = extract(f, {"twice": "t", lambda site: site.name == "loop": "l"})(jnp.float32(1.0), scale=2)
    assert [float(t) for t in found["t"]] == [1.0, 2.0]
    np.testing.assert_allclose(found["l"], [4.0, 8.0, 16.0])


def test_a_model_is_not_changed():
    class Counting(nnx.Module):
        def __init__(self):
            self.n = nnx.Variable(jnp.zeros(()))

        def __call__(self, x):
            self.n[...] += 1
            return sow(x + self.n[...], "h")

    model = Counting()
    assert extract(model, {"h": "h"})(1.0)["h"] == extract(model, {"h": "h"})(1.0)["h"] == 2.0
    model(1.0)
    assert extract(model, {"h": "h"})(1.0)["h"] == 3.0


def test_errors():
    x = jnp.ones((2, 2))
    with pytest.raises(NoSuchSiteError, match="pattern 'no' matches none"):
        extract(deep, {"no": "h"})(x)
    with pytest.raises(ValueError, match=r"'\*\*' must match one site, but matches 4 sites: 'layers/0/h', "):
        extract(deep, {"**": "h"})(x)
    with pytest.raises(ValueError, match="every feature needs a different name"):
        extract(deep, {"a": "h", "b": "h"})
    with pytest.raises(TypeError, match="extract takes a mapping from paths to names, such as .* got 'h'"):
        extract(deep, "h")
