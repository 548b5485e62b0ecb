import jax
import jax.numpy as jnp

import sonde
from sonde import Edit
from sonde.core.interpret.call_counts import CallCounts


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
    assert dict(before) == {"a": 1}, "a mark must not move with the counting"


def test_an_edit_after_a_cond_goes_by_the_branch_with_most_calls():
    def f(x):
        x = jax.lax.cond(x > 0, lambda x: sonde.sow(sonde.sow(x, "h") + 1, "h"), lambda x: sonde.sow(x, "h") + 1, x)
        return sonde.sow(x, "h")

    third = sonde.edit(f, {"h": Edit(lambda h: h * 100, calls=2)})
    assert third(jnp.float32(1)) == 200
    assert third(jnp.float32(-1)) == 0
