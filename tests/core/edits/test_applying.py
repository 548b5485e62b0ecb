"""Edits as part of the program, applied where values are made."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sonde
from sonde import Edit, edit, scope, sow
from sonde.errors import EditError

X = jnp.arange(3.0)


def test_one_jitted_function_under_two_scopes():
    """It is traced once for both; the edit is meant for one of them, and does not fit the other."""
    g = jax.jit(lambda x: sow(x * 2, "h").sum())

    def f(x):
        with scope("a"):
            first = g(x)
        with scope("b"):
            return first + g(x[:2])

    def only_three(h):
        assert h.shape == (3,)
        return h + jnp.ones(3)

    assert edit(f, {"a/h": only_three})(X) == 6 + 3 + 2
    assert jax.jit(edit(f, {"a/h": only_three}))(X) == 6 + 3 + 2
    with pytest.raises(EditError, match=r"edit of 'b?/?h' .*: expected float32\[2\], got float32\[3\]"):
        edit(f, {"b/h": lambda h: jnp.ones(3)})(X)


def test_a_scope_around_the_edit_is_no_part_of_the_path():
    def outer(x):
        with scope("teacher"):
            return edit(lambda x: sow(x, "h"), {"h": lambda h: h + 1})(x)

    np.testing.assert_array_equal(sonde.capture(outer)(X)[0], X + 1)


def test_compiled_once_for_other_numbers():
    traces = []

    @jax.jit
    def f(x):
        traces.append(1)
        return sow(x * 2, "h") + 1

    for number, direction in ((0.5, X), (1.5, X + 1), (2.5, np.ones(3, np.float32))):
        result = edit(f, {"h": lambda h: h * number + direction})(X)
        np.testing.assert_allclose(result, X * 2 * number + direction + 1)
        np.testing.assert_allclose(edit(f, {"h": direction})(X), np.asarray(direction) + 1)
        np.testing.assert_allclose(edit(f, {"h": Edit(lambda h: h, grad=lambda g: g * number)})(X), X * 2 + 1)
    assert len(traces) == 3
