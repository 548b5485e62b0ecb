"""Predicates and reduce functions that read what changes between calls."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sonde import capture, sow
from sonde.core.session.closures import state_of

X = np.arange(3, dtype=np.float32)
jitted = jax.jit(lambda x: sow(sow(x, "a") * 2, "b"))
WANTED = ["a"]


class Scaled:
    def __init__(self, scale):
        self.scale = scale

    def __call__(self, value):
        return value.sum() * self.scale


def hidden(x):
    return jitted(x)


@pytest.mark.parametrize("f", [jitted, hidden], ids=["jitted", "jitted inside"])
def test_what_a_predicate_reads_may_change(f):
    captured = capture(f, lambda site: site.name in WANTED)
    for name in ("a", "b", "a"):
        WANTED[:] = [name]
        assert list(captured(X)[1]) == [name]


@pytest.mark.parametrize("f", [jitted, hidden], ids=["jitted", "jitted inside"])
def test_what_a_reduce_function_reads_may_change(f):
    box, scaled, numbers = [2.0], Scaled(2.0), np.array([2.0], np.float32)
    of_box = capture(f, "a", reduce=lambda v: v.sum() * box[0])
    of_object = capture(f, "a", reduce=scaled)
    of_array = capture(f, "a", reduce=functools.partial(lambda n, v: v.sum() * n[0], numbers))
    for scale in (2.0, 5.0, 2.0):
        box[0] = scaled.scale = numbers[0] = scale
        for captured in (of_box, of_object, of_array):
            assert captured(X)[1]["a"].value == X.sum() * scale


def test_functions_that_read_nothing_have_no_state():
    assert state_of("blocks/*", None, lambda v: v.mean(), jnp.mean, np.mean, jax.jit(jnp.mean)) is None


def test_the_state_is_the_same_while_nothing_changes():
    model = {"w": jnp.ones(2), "names": ["x", "y"]}
    f = lambda v: v * model["w"]
    before = state_of(f)
    assert before == state_of(f)
    assert hash(before) == hash(state_of(f))
    model["names"].append("z")
    assert before != state_of(f)


@pytest.mark.parametrize(
    ("before", "after"), [(0.0, -0.0), (np.float32(0.0), np.float32(-0.0)), (0j, complex(0, -0.0))]
)
def test_the_sign_of_zero_counts(before, after):
    bound = {"x": before}
    f = lambda y: y / bound["x"]
    first = state_of(f)
    bound["x"] = after
    assert state_of(f) != first


def test_one_nan_is_as_good_as_another():
    assert state_of(lambda y, x=float("nan"): y + x) == state_of(lambda y, x=float("nan"): y + x)
