"""`ablate` and `steer`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.tools.models import OUT, X, every_face, forward

from sonde import sow
from sonde.errors import EditError, NoSuchSiteError
from sonde.tools import ablate, steer

tree = lambda x: sow({"a": x, "s": jnp.sum(x), "flag": x > 0}, "tree")


@every_face
def test_every_face(face):
    f = forward(face)
    np.testing.assert_allclose(ablate(f, "hidden")(X), [0, 0])
    np.testing.assert_allclose(ablate(f, "hidden", units=[-1])(X), [5, 3])
    np.testing.assert_allclose(ablate(f, "hidden", units=0, unit_axis=0)(X), [0, 3])
    np.testing.assert_allclose(ablate(f, "hidden", value="mean")(X), [3, 3])
    np.testing.assert_allclose(ablate(f, "hidden", value=1.0, units=1)(X), [8, 8])
    np.testing.assert_allclose(steer(f, {"hidden": jnp.array([0.0, 1.0, 0.0])}, scale=2.0)(X), [13, 13])
    np.testing.assert_allclose(f(X), OUT)


def test_pytrees_loops_and_scalars():
    out = ablate(tree, "tree", value=2.0)(X)
    assert (out["a"] == 2).all() and out["s"] == 2 and (out["flag"] == (X > 0)).all()
    out = steer(tree, {"tree": {"a": 1.0, "s": jnp.float32(2.0), "flag": jnp.zeros(1, bool)}})(X)
    np.testing.assert_allclose(out["a"], X + 1)
    assert out["s"] == 8.0
    loop = lambda x: lax.scan(lambda c, _: (sow(c * 2, "c"), None), x, length=3)[0]
    assert jax.jit(steer(loop, {"c": 1.0}))(jnp.float32(1.0)) == ((1 * 2 + 1) * 2 + 1) * 2 + 1


def test_the_scale_can_be_differentiated():
    f = lambda scale: jnp.sum(steer(lambda x: sow(x, "h") ** 2, {"h": jnp.array([1.0, 2.0])}, scale=scale)(jnp.ones(2)))
    assert jax.grad(f)(1.0) == 2 * 2 * 1 + 2 * 3 * 2


def test_errors():
    f = lambda x: sow(x, "h")
    with pytest.raises(ValueError, match="ablate needs at least one pattern"):
        ablate(f)
    with pytest.raises(ValueError, match="value= is a number, an array, 'mean' or statistics by path, got 'median'"):
        ablate(f, "h", value="median")
    with pytest.raises(ValueError, match=r"a value of shape \[2, 2\] has no unit 2 along axis -1"):
        ablate(f, "h", units=2)(X)
    with pytest.raises(ValueError, match=r"a value of shape \[2, 2\] has no axis 5"):
        ablate(f, "h", unit_axis=5)(X)
    with pytest.raises(NoSuchSiteError, match="pattern 'g' matches none"):
        steer(f, {"g": 1.0})(X)
    with pytest.raises(EditError, match=r"steer at 'h': a direction of shape \[3\] does not broadcast to the value of"):
        steer(f, {"h": jnp.ones(3)})(X)
    with pytest.raises(TypeError, match="steer takes a mapping from patterns to directions, got 'h'"):
        steer(f, "h")
