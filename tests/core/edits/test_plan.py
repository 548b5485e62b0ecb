"""Which edits a site asks about, before its whole path is known."""

import jax.numpy as jnp
import pytest

from sonde import Edit
from sonde.core.edits.plan import EditPlan, _may_end_in
from sonde.core.marks.path import glob_matches

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


def test_equal_edits_have_one_plan_with_the_functions_of_the_last_one():
    from sonde.core.verbs.edit import _steps_of, _wishes

    plans = [EditPlan.of(_steps_of(_wishes({"h": Edit(lambda h: h + d)}))[0]) for d in (X, X * 2)]
    assert plans[0] is plans[1]

    def chosen(wanted):
        return lambda site: site.name in wanted

    first, second = ["h"], ["h"]
    plans = [EditPlan.of(_steps_of(_wishes({chosen(wanted): Edit(0.0)}))[0]) for wanted in (first, second)]
    first.append("k")
    assert plans[0] is plans[1]
    assert plans[0].steps[0].pattern.__closure__[0].cell_contents is second
