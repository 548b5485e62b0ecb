"""Which edits a site asks about, before its whole path is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sonde
from sonde import Edit, edit, scope, sow
from sonde.core.edits.plan import EditPlan, _may_end_in
from sonde.core.marks.path import glob_matches
from sonde.errors import EditError

X = jnp.arange(3.0)


@pytest.mark.parametrize(
    "glob", ["h", "*", "a/h", "*/h", "**/h", "**", "a/**", "blocks/3/h", "blocks/*/h", "b{1..3}/h", "?"]
)
@pytest.mark.parametrize("path", ["h", "a/h", "b/a/h", "blocks/h", "blocks/3/h", "x/blocks/3/h", "b2/h", "a/b/c"])
def test_no_site_that_an_edit_is_meant_for_is_passed_over(glob, path):
    """Whatever part of the path is known, and also if numbers of iterations are put between its parts."""
    parts = path.split("/")
    whole = [path, *["/".join([*parts[:i], "3", *parts[i:]]) for i in range(1, len(parts))]]
    for start in range(len(parts)):
        relative = "/".join(parts[start:])
        if any(glob_matches(glob, one) for one in whole):
            assert _may_end_in(glob, relative)


def test_sites_with_other_names_are_not_asked():
    assert not _may_end_in("blocks/3/mlp/out", "attn/out")
    assert not _may_end_in("h", "k")
    assert not _may_end_in("a/h", "b/h")


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


def test_equal_edits_have_one_plan():
    from sonde.core.verbs.edit import _plan_of

    plans = [_plan_of({"h": Edit(lambda h: h + d)})[0] for d in (X, X * 2)]
    assert plans[0] is plans[1] and isinstance(plans[0], EditPlan)


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
