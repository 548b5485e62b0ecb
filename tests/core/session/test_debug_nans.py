"""JAX's checks for NaN and Inf in captures."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from sonde import capture, sow

X = jnp.array([0.0, 2.0])


def masked(x):
    return jnp.where(x > 1, sow(lax.log(x - 1), "bad"), 0.0)


def looped(x):
    return lax.scan(lambda c, _: (masked(c), None), x, length=2)[0]


CALLS = {
    "jit": jax.jit(masked),
    "jit inside": lambda x: jax.jit(masked)(x),
    "scan": looped,
    "vmap": jax.jit(jax.vmap(masked)),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("option", [jax.debug_nans, jax.debug_infs])
def test_what_is_recorded_may_be_nan_but_not_the_result(name, option):
    f = CALLS[name]
    at = X if option is jax.debug_nans else X + jnp.array([1.0, 0.0])
    with option(True):
        result, records = capture(f)(at)
        np.testing.assert_array_equal(result, f(at))
        assert not np.isfinite(records["bad"].value).all()
        with pytest.raises(FloatingPointError):
            capture(lambda x: f(x) + jax.jit(lambda x: sow(x, "x") / 0)(x))(at)
