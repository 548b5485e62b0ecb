"""`while_loop`: mapped lengths, loops that are not used, last iterations, sites in the test."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.core.comparing import equal, kinds

import sonde
from sonde import capture, sow, tools

N, X = jnp.array([1, 3]), jnp.array([1.0, 10.0])


def adding(n: Any, x: Any) -> Any:
    def body(state: Any) -> Any:
        i, c = state
        return i + 1, sonde.sow(c + x, "c")

    return lax.while_loop(lambda s: s[0] < n, body, (0, 0.0))[1]


def by_hand(n: int, x: float, last: int) -> list[float]:
    rows = [x * (i + 1) for i in range(n)][-last:]
    return rows + [0.0] * (last - len(rows))


@pytest.mark.parametrize("last", [1, 2])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_axes_of_one_size_are_not_taken_for_each_other(wrap: Callable, last: int) -> None:
    by_length_first = jax.vmap(jax.vmap(adding, (None, 0)), (0, None))
    by_value_first = jax.vmap(jax.vmap(adding, (0, None)), (None, 0))
    expected = np.array([[by_hand(int(n), float(x), last) for x in X] for n in N])  # length, value, row
    for program, order in ((by_length_first, (0, 1)), (by_value_first, (1, 0))):
        _, records = wrap(sonde.capture(program, last=last))(N, X)
        value = np.asarray(records["c"].value)
        wanted = np.moveaxis(expected.transpose(*order, 2), -1, 0)
        np.testing.assert_allclose(value, wanted if last > 1 else wanted[0])
        np.testing.assert_array_equal(records["c"].counts[0], np.tile(np.asarray(N)[:, None], (1, 2)).transpose(order))


def test_loops_in_loops_with_lengths_mapped_by_different_axes() -> None:
    def nested(n: Any, m: Any, x: Any) -> Any:
        def body(state: Any) -> Any:
            i, c = state
            return i + 1, adding(m, sonde.sow(c + x, "outer"))

        return lax.while_loop(lambda s: s[0] < n, body, (0, 0.0))[1]

    m, x = jnp.array([2, 1]), jnp.array([1.0, 10.0])
    program = nested
    for axes in ((None, None, 0), (None, 0, None), (0, None, None)):
        program = jax.vmap(program, axes)
    _, records = sonde.capture(program)(N, m, x)

    def run(n: int, m: int, x: float) -> tuple[float, float]:
        outer = inner = result = 0.0
        for _ in range(n):
            outer = result + x
            inner = result = m * outer
        return outer, inner

    expected = np.array([[[run(int(n), int(k), float(v)) for v in x] for k in m] for n in N])
    np.testing.assert_allclose(records["outer"].value, expected[..., 0])
    np.testing.assert_allclose(records["c"].value, expected[..., 1])


@pytest.mark.parametrize("grads", [False, True])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint], ids=["plain", "jit", "remat"])
def test_a_loop_that_is_not_used_in_a_differentiated_function(wrap: Callable, grads: bool) -> None:
    def loss(x: Any) -> Any:
        lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, sonde.sow(s[1] * x, "w")), (0, 1.0))
        return x**2

    gradient, records = sonde.capture(jax.grad(wrap(loss)), grads=grads)(2.0)
    assert gradient == 4.0
    assert records["w"].values == (8.0,)
    assert records["w"].counts == (3,)


def test_a_loop_in_a_branch_that_is_not_taken_has_not_run() -> None:
    f = lambda p, x: lax.cond(p, lambda x: adding(2, x), lambda x: x, x)
    _, records = sonde.capture(jax.jit(f))(False, 1.0)
    assert (records["c"].taken, records["c"].counts) == ((False,), (0,))
    _, records = sonde.capture(jax.vmap(f, (0, None)))(jnp.array([True, False]), 1.0)
    np.testing.assert_array_equal(records["c"].counts[0], [2, 0])


def test_sites_in_the_test_of_a_loop_keep_their_last_runs_too() -> None:
    def f(n: Any) -> Any:
        return lax.while_loop(lambda i: sonde.sow(i, "seen") < n, lambda i: i + 1, 0)

    _, records = sonde.capture(f, last=3)(5)
    np.testing.assert_array_equal(records["seen"].value, [3, 4, 5])
    assert records["seen"].counts == (5,)  # iterations, as for every site of the loop
    _, records = sonde.capture(jax.vmap(f), last=3)(jnp.array([1, 5]))
    np.testing.assert_array_equal(records["seen"].value.T, [[0, 1, 0], [3, 4, 5]])


def collatz(n):
    step = lambda n: sow(jnp.where(n % 2 == 0, n // 2, 3 * n + 1), "n")
    return lax.while_loop(lambda n: n > 1, step, n)


def test_while_loop_keeps_the_last_iteration_and_counts():
    result, records = capture(collatz)(6)
    assert int(result) == 1
    equal(records["n"].values, (1,))
    equal(records["n"].counts, (8,))
    result, records = capture(collatz)(1)  # no iteration at all
    equal(records["n"].values, (0,))
    equal(records["n"].counts, (0,))


def test_while_loop_keeps_more_iterations_on_request():
    equal(capture(collatz, last=3)(6)[1]["n"].value, [4, 2, 1])
    record = capture(collatz, last=3)(2)[1]["n"]
    equal(record.value[:1], [1])
    equal(record.counts, (1,))


def test_sites_in_the_test_of_a_while_loop():
    f = lambda x: lax.while_loop(lambda c: sow(c, "test") < 3, lambda c: sow(c + 1, "body"), x)
    scanned = lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0]
    for looked in (capture(f), capture(jax.jit(f)), capture(jax.checkpoint(f))):
        result, records = looked(0.0)
        assert list(records) == ["test", "body"]  # program order
        equal((result, records["test"].values, records["body"].values), (3.0, (3.0,), (3.0,)))
        equal((records["test"].counts, records["body"].counts), ((3,), (3,)))
    equal(capture(scanned)(0.0)[1]["test"].values, (jnp.array([3.0]),))
    nested = capture(lambda x: capture(f)(x)[0])
    equal(nested(0.0)[1]["test"].values, (3.0,))


def test_fori_loop_with_bounds_known_when_it_runs_is_a_while_loop():
    f = jax.jit(lambda n, x: lax.fori_loop(0, n, lambda i, c: sow(c * 2, "c"), x))
    record = capture(f)(3, 1.0)[1]["c"]
    equal((record.value, record.counts), (8.0, (3,)))


def test_vmap_of_while_with_a_leaf_of_the_predicates_shape():
    def f(n):
        body = lambda s: (s[0] + 1, sow({"a": s[1] * 1, "k": jnp.arange(3)}, "tree")["a"])
        return lax.while_loop(lambda s: s[0] < s[1], body, (0, n))[1]

    value = capture(jax.vmap(f))(jnp.array([1, 0, 3]))[1]["tree"].value
    ran = jnp.array([[1], [0], [1]])
    equal(value, {"a": jnp.array([1, 0, 3]), "k": jnp.arange(3) * ran})


def test_vmap_of_while_with_a_mapped_predicate():
    starts = jnp.array([6, 1, 2, 3])
    for last in (1, 2):
        record = capture(jax.vmap(collatz), last=last)(starts)[1]["n"]
        equal(record.counts, (jnp.array([8, 0, 1, 7]),))
        if last == 1:
            equal(record.value, [1, 0, 1, 1])
            assert kinds(record) == [["vmap"]]
        else:
            equal(record.value[:, 0], [2, 1])
            equal(record.value[:, 3], [2, 1])
            equal(record.value[0, 2], 1)
            assert kinds(record) == [["while", "vmap"]]


def test_a_site_in_the_test_of_a_loop_that_is_split_into_what_is_known_and_the_rest() -> None:
    """A differentiated loop inside a differentiated loop."""

    @jax.jit
    def doubled(x: Any) -> Any:
        def go_on(state: Any) -> Any:
            sow(state[1], "seen")
            return state[0] < 2

        return lax.while_loop(go_on, lambda s: (s[0] + 1, s[1] * 2), (0, lax.stop_gradient(x)))[1]

    def loss(w: Any) -> Any:
        def row(x: Any) -> Any:
            _, pull = jax.vjp(lambda y: doubled(y) * y, jnp.array(0.25))
            return jnp.sin(pull(w * x)[0])

        return jnp.sum(lax.map(row, jnp.arange(3.0)))

    for f in (loss, jax.grad(loss), jax.jit(jax.grad(loss))):
        equal(capture(f)(3.0)[1]["seen"].value, jnp.ones(3))


@pytest.mark.parametrize("last", [1, 2])
def test_loops_over_nothing(last: int) -> None:
    nothing = jnp.ones(0)
    result, records = capture(jax.vmap(adding), last=last)(nothing, nothing)
    assert result.shape == (0,)
    assert records["c"].values[0].shape == ((0,) if last == 1 else (last, 0))
    assert tools.first_nonfinite(jax.vmap(adding))(nothing, nothing) is None


def test_calls_in_the_test_of_a_loop_are_counted_once_and_before_those_of_the_body():
    def f(x: Any) -> Any:
        y = lax.while_loop(lambda c: sow(c, "p") < 5, lambda c: sow(c + 1, "p"), x)
        return sow(y * 10, "p")

    # Half of one more stops the loop no sooner if it is added in the test, and goes into the result in the body.
    expected = {0: 50.0, 1: 55.0, 2: 50.5}
    assert [float(v) for v in capture(f)(1.0)[1]["p"].values] == [5.0, 5.0, 50.0]
    for call, result in expected.items():
        edited = sonde.edit(f, {"p": sonde.Edit(lambda v: v + 0.5, calls=call)})
        assert edited(1.0) == capture(edited)(1.0)[0] == jax.jit(edited)(1.0) == result
    with pytest.raises(sonde.errors.EditError, match="the site runs 3 times"):
        capture(sonde.edit(f, {"p": sonde.Edit(jnp.negative, calls=3)}))(1.0)
