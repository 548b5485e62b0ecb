"""The names of sites, and the patterns that choose among them."""

import jax
import jax.numpy as jnp
import pytest
from tests.core.comparing import check_nothing_is_left, double

import sonde
from sonde import capture, sow
from sonde.core.marks.path import check_patterns, glob_matches, no_such_site
from sonde.errors import NoSuchSiteError, SiteNameError

X = jnp.arange(3.0)


def f(x):
    with sonde.scope("block"):
        h = sow(jnp.sin(x), "h")
    return sow(sow(h * 2, "twice") + 1, "twice").sum()


def test_names_that_are_none():
    for name, what in (("", "must not be empty"), ("a//b", "an empty part"), (3, "must be a str, got 3 of type int")):
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
    with pytest.raises(NoSuchSiteError, match="'g' matches none of the program's 1 site; it is 'h'"):
        capture(double, "g")(X)
    with pytest.raises(NoSuchSiteError, match="'g'"):
        capture(jax.jit(double), "g")(X)
    with pytest.raises(NoSuchSiteError, match="no sites at all"):
        capture(lambda x: x, "g")(X)
    check_nothing_is_left()


@pytest.mark.parametrize("name", ["", "a//b", "/a", "a/", 3, None, "*", "a/*/b", "a/*"])
def test_a_name_that_cannot_name_a_site(name):
    with pytest.raises(SiteNameError):
        capture(lambda x: sow(x, name))(X)
    check_nothing_is_left()


@pytest.mark.parametrize(
    ("glob", "paths", "others"),
    [
        ("a", ["a"], ["b", "a/b", "ab", ""]),
        ("*", ["a", "a.b"], ["a/b"]),
        ("a/*", ["a/b", "a/"], ["a", "a/b/c", "b/a/b"]),
        ("**", ["a", "a/b", "a/b/c"], []),
        ("**/a", ["a", "b/a", "b/c/a"], ["ba", "b/ca", "a/b"]),
        ("a/**", ["a/b", "a/b/c"], ["a", "b/a/c"]),
        ("a/**/b", ["a/b", "a/c/b", "a/c/d/b"], ["a/cb"]),
        ("?", ["a"], ["", "ab", "/"]),
        ("b{9..11}", ["b9", "b10", "b11"], ["b8", "b12", "b011", "b1"]),
        ("b{3..2}", [], ["b2", "b3", "b"]),
        ("{q,k}", ["{q,k}", "q", "k"], ["v", "q,k", ""]),
        ("{q*,k}/?", ["q1/a", "k/b"], ["k1/a"]),
        (r"f\{x,y\}/*", ["f{x,y}/h"], ["fx/h", r"f\{x,y\}/h"]),
        (r"a\*\?", ["a*?"], ["ab*", "a*b"]),
        (r"a\b", [r"a\b"], ["ab"]),
        ("a.b[0]+(c)$", ["a.b[0]+(c)$"], ["axb0c"]),  # nothing else is special
        ("{x}", ["{x}"], ["x"]),
        ("{a..b}", ["{a..b}"], ["a"]),
    ],
)
def test_globs(glob, paths, others):
    assert [path for path in [*paths, *others] if glob_matches(glob, path)] == paths


def test_a_predicate_without_a_hash_is_compared_by_identity():
    class Unhashable:
        __hash__ = None

        def __call__(self, site):
            return site.path == "a"

    predicate = Unhashable()
    one, same, other = check_patterns([predicate, predicate, Unhashable()], "capture")
    assert one == same
    assert one != other
    assert len({one, same, other}) == 2
    assert callable(one)


def test_the_error_for_a_pattern_shows_what_is_near_or_the_first_names():
    many = [f"blocks/{i}/mlp" for i in range(30)]
    assert "nearest: 'blocks/7/mlp'" in str(no_such_site("blocks/7/mlpp", many))
    assert str(no_such_site("zzz", many)).endswith(f"{', '.join(map(repr, many[:10]))} and 20 more")
    assert "matches none of the program's 1 site" in str(no_such_site("x", ["y", "y"]))

    def is_small(site):
        return False

    assert "'is_small'" in str(no_such_site(is_small, ["y"]))
