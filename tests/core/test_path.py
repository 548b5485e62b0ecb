"""The names of sites, and the patterns that choose among them."""

import jax
import jax.numpy as jnp
import pytest
from tests.core.comparing import check_nothing_is_left, double

import sonde
from sonde import capture, sow
from sonde.errors import NoSuchSiteError, SiteNameError

X = jnp.arange(3.0)


def f(x):
    with sonde.scope("block"):
        h = sow(jnp.sin(x), "h")
    return sow(sow(h * 2, "twice") + 1, "twice").sum()


def test_names_that_are_none():
    for name, what in (("", "must not be empty"), ("a//b", "an empty part"), (3, "named by a str, got 3 of type int")):
        with pytest.raises(SiteNameError, match=what):
            sonde.capture(lambda x, name=name: sow(x, name))(X)
    with pytest.raises(SiteNameError):
        sonde.scope("")


def test_patterns():
    assert list(sonde.capture(f, "**/h")(X)[1]) == ["block/h"]
    assert list(sonde.capture(f, lambda site: site.path.startswith("tw"))(X)[1]) == ["twice"]
    assert list(sonde.capture(f, "block/*", "twice")(X)[1]) == ["block/h", "twice"]
    with pytest.raises(NoSuchSiteError, match="'blok/h' matches none of the program's 2 sites; nearest: 'block/h'"):
        sonde.capture(f, "blok/h")(X)
    with pytest.raises(NoSuchSiteError, match="the program has no sites at all"):
        sonde.capture(jnp.sin, "h")(X)
    with pytest.raises(TypeError, match="a glob over paths or a predicate of a site, got 3"):
        sonde.capture(f, 3)


def test_a_pattern_that_matches_nothing_leaves_nothing_behind():
    with pytest.raises(NoSuchSiteError, match="'g' matches none of the program's 1 sites; nearest: 'h'"):
        capture(double, "g")(X)
    with pytest.raises(NoSuchSiteError, match="'g'"):
        capture(jax.jit(double), "g")(X)
    with pytest.raises(NoSuchSiteError, match="no sites at all"):
        capture(lambda x: x, "g")(X)
    check_nothing_is_left()


@pytest.mark.parametrize("name", ["", "a//b", "/a", "a/", 3, None])
def test_a_name_that_cannot_name_a_site(name):
    with pytest.raises(SiteNameError):
        capture(lambda x: sow(x, name))(X)
    check_nothing_is_left()
