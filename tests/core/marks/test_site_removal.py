"""A program without its sites is the program that nobody marked."""

import jax
import jax.numpy as jnp
import numpy as np

import sonde
from sonde import _jax
from sonde.core.marks.site_removal import without_sites
from sonde.core.session.session import CaptureState, with_capture_state

X = jnp.arange(3.0)


def program(mark):
    def body(carry, x):
        y = mark(jnp.sin(carry) * x, "y")
        return jax.lax.cond(y[0] > 0, lambda y: mark(y * 2, "positive"), jnp.cos, y), y.sum()

    def loss(x):
        with sonde.scope("loop"):
            last, sums = jax.lax.scan(body, x, jnp.ones((2, 3)))
        return mark(last, "last").sum() + jax.jit(lambda s: mark(s, "sums") * 2)(sums).sum()

    return jax.value_and_grad(loss)


def test_a_program_without_its_sites_is_the_plain_program():
    _jax.make_changes()  # as the first capture does
    for grads in (False, True):
        with with_capture_state(CaptureState(grads=grads)):
            marked = jax.make_jaxpr(lambda x: program(sonde.sow)(x))(X)
        plain = jax.make_jaxpr(lambda x: program(lambda value, name: value)(x))(X)
        assert "sonde" in str(marked)
        bare = without_sites(marked)
        assert "sonde" not in str(bare)
        assert not bare.effects
        for got, wanted in zip(
            jax.core.eval_jaxpr(bare.jaxpr, bare.consts, X), jax.core.eval_jaxpr(plain.jaxpr, [], X)
        ):
            np.testing.assert_array_equal(got, wanted)


def test_a_program_that_has_no_sites_stays_the_same_object():
    plain = jax.make_jaxpr(program(lambda value, name: value))(X)
    assert without_sites(plain) is plain
