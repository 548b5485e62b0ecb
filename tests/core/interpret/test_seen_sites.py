import jax
import jax.numpy as jnp
import numpy as np
from tests.core.making import site_of

import sonde
from sonde import Edit
from sonde.core.interpret.seen_sites import CallCounts, SeenSites

A, B = site_of(np.ones(2), "a", grads=True), site_of(np.ones(2), "b", grads=True)


def test_calls_are_numbered_by_path():
    counts = CallCounts()
    assert [counts.next("a"), counts.next("b"), counts.next("a")] == [0, 0, 1]
    assert dict(counts.items()) == {"a": 2, "b": 1}


def test_branches_count_from_one_point_and_the_longest_decides():
    counts = CallCounts()
    counts.next("a")
    before = counts.mark()
    ends, marks = [], []
    for calls in (["a", "a"], ["a", "b"]):
        counts.return_to(before)
        ends.append([counts.next(path) for path in calls])
        marks.append(counts.mark())
    counts.join(marks)
    assert ends == [[1, 2], [1, 0]]
    assert dict(counts.items()) == {"a": 3, "b": 1}
    counts.return_to(before)
    assert dict(counts.items()) == {"a": 1}, "a mark must not move with the counting"


def test_an_edit_after_a_cond_goes_by_the_branch_with_most_calls():
    def f(x):
        x = jax.lax.cond(x > 0, lambda x: sonde.sow(sonde.sow(x, "h") + 1, "h"), lambda x: sonde.sow(x, "h") + 1, x)
        return sonde.sow(x, "h")

    third = sonde.edit(f, {"h": Edit(lambda h: h * 100, calls=2)})
    assert third(jnp.float32(1)) == 200
    assert third(jnp.float32(-1)) == 0


def test_what_was_met_inside_is_taken_over_when_it_is_asked_for():
    inner, met = SeenSites(), SeenSites()
    inner.paths["a"] = None
    inner.sites[A] = frozenset({1})
    kept = inner.alone()
    met.update(kept)
    met.update(kept)
    assert met.passes == frozenset()
    assert (list(met.paths), met.sites, kept.paths) == (["a"], {A: frozenset({1})}, {"a": None})
    met.paths["b"] = None
    assert list(kept.paths) == ["a"]
    after = SeenSites()
    after.backward.add((A, 0))
    met.update(after)
    assert met.passes == {0}
    assert not hasattr(met, "other")


def test_what_was_met_inside_is_known_outside_only_when_it_is_taken_over():
    met = SeenSites()
    inside = met.child()
    inside.sites[A] = {2}
    inside.wanted.add(A)
    inside.backward.add((A, 0))
    assert inside.wants_gradient(A)
    assert not met.has_met(A)
    met.update(inside)
    assert met.has_met(A)
    assert met.wants_gradient(A)
    assert met.passes == {1}  # not the outermost of the two differentiations that the value has been through
    assert not met.has_met(B)
