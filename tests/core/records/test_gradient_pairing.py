"""Every gradient belongs to the value it is the gradient of, leaf by leaf and element by element."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.core.comparing import equal

import sonde
from sonde import capture, sow
from sonde.errors import CaptureError

W, V = jnp.float32(0.3), jnp.array([0.5, 0.6, 0.7], jnp.float32)
WRAPS = pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])


@jax.jit
def g(x: Any) -> Any:
    return sonde.sow(jnp.sin(x), "h") * 1


@WRAPS
@pytest.mark.parametrize("axes", [(None, 0), (0, None), (0, 0)])
def test_one_function_called_with_mapped_and_unmapped_values(wrap: Callable, axes: tuple[int | None, ...]) -> None:
    w, v = (W if axes[0] is None else V + 1), (W if axes[1] is None else V)
    losses = [lambda a, b: g(a) * g(b), lambda a, b: 2 * g(a) + 3 * g(b), lambda a, b: g(a) * g(b) + g(b) ** 2]
    by_hand = [
        lambda a, b: (jnp.sin(b), jnp.sin(a)),
        lambda a, b: (2.0 + 0 * b, 3.0 + 0 * a),
        None,
    ]
    for loss, expected in zip(losses, by_hand):
        program = jax.vmap(jax.grad(loss, (0, 1)), in_axes=axes)
        _, records = wrap(sonde.capture(program, grads=True))(w, v)
        if expected is not None:
            wanted = jax.vmap(expected, in_axes=axes)(w, v)
            for gradient, want in zip(records["h"].grads, wanted, strict=True):
                np.testing.assert_allclose(*np.broadcast_arrays(gradient, want), rtol=1e-6)
        else:  # the function is called three times
            a, b, c = (np.broadcast_to(x, (3,)) for x in records["h"].grads)
            sin_w, sin_v = np.sin(w), np.sin(v)
            np.testing.assert_allclose(a, np.broadcast_to(sin_v, 3), rtol=1e-6)
            np.testing.assert_allclose(b, np.broadcast_to(sin_w, 3), rtol=1e-6)
            np.testing.assert_allclose(c, np.broadcast_to(2 * sin_v, 3), rtol=1e-6)


@WRAPS
def test_the_leaves_of_a_gradient_are_added_by_which_leaf_they_are(wrap: Callable) -> None:
    @jax.jit
    def f(a: Any, b: Any) -> Any:
        x, y = sonde.sow((a * 2, b * 3), "t")
        return jnp.sin(x) * y

    def step(a: Any, b: Any) -> Any:
        y, pull = jax.vjp(f, a, b)
        _, only_b = jax.vjp(lambda b: f(a, b), b)
        return jax.grad(f, 0)(a, b), jax.grad(f, 1)(a, b), pull(1.0), pull(2.0), only_b(1.0), y

    _, records = wrap(sonde.capture(step, grads=True))(W, W)
    x, y = 0.6, 0.9
    da, db = np.cos(x) * y, np.sin(x)
    # in the order of the calls: two for the pullback, which runs twice; one by `b`; the gradients by `a` and by `b`
    expected = [(3 * da, 3 * db), (None, db), (da, None), (None, db)]
    got = records["t"].grads
    assert len(got) == len(expected)
    for pair, wanted in zip(got, expected):
        for gradient, want in zip(pair, wanted):
            assert (gradient is None) == (want is None)  # an array that does not depend on what is differentiated
            np.testing.assert_allclose(gradient if want is not None else 0, want or 0, rtol=1e-5)


@WRAPS
def test_branches_that_share_a_function_have_each_their_own_gradient(wrap: Callable) -> None:
    def loss(x: Any) -> Any:
        return lax.cond(x > 0.55, lambda x: 2 * g(x), lambda x: g(g(x)), x)

    gradients, records = wrap(sonde.capture(jax.vmap(jax.grad(loss)), grads=True))(V)
    np.testing.assert_allclose(gradients, jax.vmap(jax.grad(loss))(V), rtol=1e-6)
    taken = np.asarray(V > 0.55)
    total = {
        tuple(np.asarray(t)): np.asarray(h) for t, h in zip(records["h"].taken, records["h"].grads) if t is not None
    }
    for flags, gradient in total.items():
        assert np.all(gradient[~np.asarray(flags)] == 0)
    inner = np.where(taken, 0, np.cos(np.sin(V)))  # of the first of two calls
    found = [np.asarray(h) for h in records["h"].grads]
    assert any(np.allclose(h, np.where(taken, 2, inner)) or np.allclose(h, inner) for h in found)
    np.testing.assert_allclose(sum(found), np.where(taken, 2, inner + 1), rtol=1e-6)


@WRAPS
def test_a_function_in_a_scan_whose_branch_changes(wrap: Callable) -> None:
    def loss(x: Any) -> Any:
        def body(c: Any, i: Any) -> Any:
            return lax.cond(i % 2 == 0, lambda c: 2 * g(c), lambda c: 3 * g(c), c), None

        return lax.scan(body, x, jnp.arange(4))[0]

    _, records = wrap(sonde.capture(jax.grad(loss), grads=True))(W)
    hs, c = [], float(W)
    for i in range(4):
        hs.append(np.sin(c))
        c = (2 if i % 2 == 0 else 3) * hs[-1]
    factors, wanted = [2, 3, 2, 3], []
    for i in range(4):
        gradient = factors[i]
        for j in range(i + 1, 4):
            gradient *= np.cos(factors[j - 1] * hs[j - 1]) * factors[j]
        wanted.append(gradient)
    np.testing.assert_allclose(sum(np.asarray(x) for x in records["h"].grads), wanted, rtol=1e-5)


@WRAPS
def test_backward_passes_of_different_shape_add_up(wrap: Callable) -> None:
    def step(x: Any) -> Any:
        _, pull = jax.vjp(lambda x: sonde.sow(jnp.sin(x), "h") ** 2, x)
        pull(1.0)
        return lax.scan(lambda c, ct: (c, pull(ct)), 0.0, V)

    _, records = wrap(sonde.capture(step, grads=True))(W)
    np.testing.assert_allclose(records["h"].grad, 2 * np.sin(0.3) * (1 + float(V.sum())), rtol=1e-6)


@WRAPS
@pytest.mark.parametrize("other", [jax.vmap, lambda f: jax.vmap(jax.vmap(f))], ids=["like it", "in another"])
def test_gradients_of_two_maps_that_have_nothing_in_common_are_an_error(wrap: Callable, other: Callable) -> None:
    def step(x: Any) -> Any:
        _, pull = jax.vjp(lambda x: sonde.sow(jnp.sin(x), "h") ** 2, x)
        jax.vmap(pull)(jnp.ones(2))
        return other(pull)(jnp.ones((2, 2) if other is not jax.vmap else 2))

    with pytest.raises(CaptureError, match=r"site 'h' .* two backward passes, with the axes \(vmap:2,\) and"):
        wrap(sonde.capture(step, grads=True))(W)


# In two maps of one size: what the value depends on, the cotangents of the backward passes, and the gradient.
A, B = np.array([1, 2, 3], np.float32), np.array([10, 20, 30], np.float32)
ACROSS = {
    "one pass for each axis": (lambda a, b: 1.0, lambda a, b: [a, b], A[:, None] + B),
    "one for both, one for the outer": (lambda a, b: 1.0, lambda a, b: [a * b, a], A[:, None] * B + A[:, None]),
    "one for both, one for the inner": (lambda a, b: 1.0, lambda a, b: [a * b, b], A[:, None] * B + B),
    "the inner, of a value of the outer": (lambda a, b: a, lambda a, b: [b], np.broadcast_to(B, (3, 3))),
    "the outer, of a value of the inner": (lambda a, b: b, lambda a, b: [a], np.broadcast_to(A[:, None], (3, 3))),
}


@WRAPS
@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("case", ACROSS)
def test_axes_of_one_size_are_told_apart(wrap: Callable, jitted: bool, case: str) -> None:
    start, cotangents, wanted = ACROSS[case]

    def f(a: Any, b: Any) -> Any:
        _, pull = jax.vjp(lambda x: sonde.sow(x, "h"), jnp.float32(start(a, b)))
        return [pull(ct) for ct in cotangents(a, b)]

    inner = jax.jit(f) if jitted else f
    both = jax.vmap(jax.vmap(inner, (None, 0)), (0, None))
    for _ in range(2):  # the second time, from caches
        _, records = wrap(sonde.capture(lambda a, b: both(a, b), grads=True))(A, B)
        np.testing.assert_allclose(records["h"].grad, wanted)
        assert [axis.size for axis in records["h"].gradient_axes()[0]] == [3, 3]


def test_the_same_jitted_function_in_maps_that_are_nested_the_other_way() -> None:
    @jax.jit
    def f(a: Any, b: Any) -> Any:
        _, pull = jax.vjp(lambda x: sonde.sow(x, "h"), a)
        return pull(b)

    _, records = sonde.capture(
        lambda a, b: (
            jax.vmap(jax.vmap(f, (None, 0)), (0, None))(a, b),
            jax.vmap(jax.vmap(f, (0, None)), (None, 0))(a, b),
        ),
        grads=True,
    )(A, B)
    for gradient, wanted in zip(records["h"].grads, [np.broadcast_to(B, (3, 3)), np.broadcast_to(B[:, None], (3, 3))]):
        np.testing.assert_allclose(gradient, wanted)


def test_branches_that_vary_over_different_axes_have_one_place() -> None:
    def f(x: Any, y: Any, z: Any) -> Any:
        return lax.cond(x, lambda: sonde.sow(2 * y, "h"), lambda: sonde.sow(3 * z, "h"))

    chosen = np.array([True, False, True])
    mapped = jax.vmap(jax.vmap(jax.vmap(f, (None, None, 0)), (None, 0, None)), (0, None, None))
    _, records = sonde.capture(mapped)(chosen, A, B)
    wanted = np.where(chosen[:, None, None], 2 * A[:, None], 3 * B)
    np.testing.assert_allclose(records["h"].value, wanted)


def test_a_map_that_has_a_name_is_named() -> None:
    f = jax.vmap(jax.vmap(lambda a, b: sonde.sow(a * b, "h"), (None, 0), axis_name="in"), (0, None), axis_name="out")
    _, records = sonde.capture(f)(A, B)
    assert [axis.name for axis in records["h"].axes[0]] == ["out", "in"]


def test_a_transposed_function_is_not_given_to_a_call_of_it() -> None:
    @jax.jit
    def double(x: Any) -> Any:
        return sonde.sow(x * 2, "h")

    def step(x: Any) -> Any:
        gradient = jax.grad(lambda x: double(x) * 3)(x)
        (other,) = jax.linear_transpose(double, x)(7.0)
        return gradient, other

    _, records = sonde.capture(step, grads=True)(W)
    assert [float(x) for x in records["h"].grads] == [3.0, 7.0]
    assert len(records["h"].values) == 1


def test_numbers_of_the_user_stay_what_jax_returns() -> None:
    f = jax.jit(lambda n, x: (n, n + 1, sonde.sow(x, "h")))
    n = np.arange(3, dtype=np.int32)
    (same, _, _), _ = sonde.capture(f, grads=True)(n, 1.0)
    assert isinstance(same, jax.Array)
    (same, _, _), _ = sonde.capture(lambda: f(n, 1.0), grads=True)()
    assert isinstance(same, jax.Array)
    _, records = sonde.capture(jax.jit(lambda n: sonde.sow(n, "n")), grads=True)(n)
    assert isinstance(records["n"].value, jax.Array)


def test_an_array_that_examples_share_has_a_gradient_for_each_of_them():
    """Where one leaf of a site varies over a mapped axis and another does not, both have the axis, gradients too."""

    def f(x, b):
        h, c = sonde.sow((x * 2.0, b * 3.0), "h")
        return jnp.sum(h * c)

    xs, b = jnp.arange(6.0).reshape(3, 2), jnp.array([1.0, 2.0])
    for loss in (
        jax.grad(lambda xs, b: jnp.sum(jax.vmap(f, (0, None))(xs, b)), (0, 1)),
        jax.vmap(jax.grad(f, (0, 1)), (0, None)),
    ):
        _, records = sonde.capture(loss, grads=True)(xs, b)
        np.testing.assert_allclose(records["h"].grad[0], jnp.broadcast_to(3 * b, (3, 2)))
        np.testing.assert_allclose(records["h"].grad[1], 2 * xs)


def test_an_outer_branch_that_was_not_taken_is_known_where_the_branches_inside_share_a_path():
    def inner(x):
        return jax.lax.cond(x > 0, lambda x: sonde.sow(x * 2, "t"), lambda x: sonde.sow(x * 3, "t"), x)

    def f(go, xs):
        return jax.lax.cond(go, jax.vmap(inner), lambda xs: xs, xs)

    xs = jnp.array([1.0, -1.0, 2.0])
    for go in (True, False):
        _, records = sonde.capture(f)(go, xs)
        assert np.all(np.asarray(records["t"].taken[0]) == go)
        np.testing.assert_allclose(records["t"].value, [2, -3, 4] if go else [0, 0, 0])


X = jnp.array([0.5, -1.0, 2.0])


def sine_of_double(x):
    return jnp.sin(sow(x * 2, "h"))


def test_a_gradient_that_is_zero_is_zeros():
    def loss(x):
        sow(x * 2, "unused")
        return jnp.sum(sow(x, "used"))

    records = capture(jax.grad(loss), grads=True)(X)[1]
    equal((records["unused"].grads, records["used"].grads), ((jnp.zeros(3),), (jnp.ones(3),)))


def test_pullbacks_called_in_the_order_of_their_creation():
    f = jax.jit(lambda x: sow(x * 2, "h") ** 2)

    def program(x):
        _, pull_a = jax.vjp(f, x)
        _, pull_b = jax.vjp(f, x * 10)
        return pull_a(jnp.ones(3)), pull_b(jnp.ones(3))

    for wrap in (lambda f: f, jax.jit):
        record = capture(wrap(program), grads=True)(X)[1]["h"]
        equal(record.values, (X * 2, X * 20))
        equal(record.grads, (X * 4, X * 40))


def test_a_pullback_called_twice_adds_up():
    def program(x):
        _, pull = jax.vjp(sine_of_double, x)
        return pull(jnp.ones(3)), pull(2 * jnp.ones(3))

    equal(capture(program, grads=True)(X)[1]["h"].grads, (3 * jnp.cos(2 * X),))


def test_a_pullback_mapped_over_cotangents_has_one_row_for_each():
    cotangents = jnp.arange(6.0).reshape(2, 3)
    want = cotangents * jnp.cos(2 * X)
    through_map = lambda x: (lambda pull: lax.map(pull, cotangents))(jax.vjp(sine_of_double, x)[1])
    through_vmap = lambda x: (lambda pull: jax.vmap(pull)(cotangents))(jax.vjp(sine_of_double, x)[1])
    equal(capture(through_map, grads=True)(X)[1]["h"].grads, (want,))
    equal(capture(through_vmap, grads=True)(X)[1]["h"].grads, (want,))


def test_second_order_gradients_are_told_apart():
    cube = lambda x: sow(x * 2, "h") ** 3
    second = jax.grad(lambda x: jax.grad(cube)(x))  # (2x)^3: 24 x^2, 48 x
    result, records = capture(second, grads=True)(1.5)
    equal(result, 48 * 1.5)
    equal(records["h"].gradients(1), (3 * 9.0,))
    equal(records["h"].gradients(2), (2 * 6 * 3.0,))  # d/dh of 2 * 3 h^2


def test_linear_transpose_has_a_cotangent_and_no_value():
    f = lambda x: jax.linear_transpose(lambda y: 3 * sow(y * 2, "h"), x)(x)
    (result,), records = capture(f, grads=True)(X)
    equal(result, X * 6)
    assert records["h"].values == ()
    equal(records["h"].grads, (X * 3,))


@pytest.mark.parametrize("inner", ["jvp", "linearize", "vjp"])
def test_a_differentiation_that_does_not_run_backward_leaves_no_zeros(inner):
    """The outer pass is the second differentiation of one site, and the first of the other."""
    ways = {
        "jvp": lambda f, x: jax.jvp(f, (x,), (x,))[0],
        "linearize": lambda f, x: jax.linearize(f, x)[0],
        "vjp": lambda f, x: jax.vjp(f, x)[0],
    }

    def loss(x):
        y = ways[inner](lambda x: sonde.sow(jnp.tanh(x), "inside"), x)
        return jnp.sum(sonde.sow(y, "outside") ** 2)

    x = jnp.array([0.3, 0.7])
    for g in (jax.grad(loss), jax.jit(jax.grad(loss)), jax.grad(jax.jit(loss))):
        records = sonde.capture(g, grads=True)(x)[1]
        np.testing.assert_allclose(records["outside"].grad, 2 * jnp.tanh(x), rtol=1e-6)
        np.testing.assert_allclose(records["inside"].grad, 2 * jnp.tanh(x), rtol=1e-6)


def test_a_branch_that_is_not_taken_gets_no_part_of_other_calls():
    @jax.jit
    def g(y, chosen):
        return lax.cond(chosen, lambda y: sow(jnp.sin(y), "s") ** 2, lambda y: y, y)

    rows, flags = jnp.array([0.3, 0.5, 0.7]), jnp.array([False, False, True])

    def f(x):
        mapped = jax.vmap(jax.grad(g))(x * rows, flags)
        return jnp.sum(mapped) + jax.grad(g)(x, x > 9) + jnp.sum(jax.vmap(jax.grad(g), (0, None))(x * rows, x > 9))

    _, records = capture(f, grads=True)(jnp.float32(1.0))
    found = records["s"]
    assert [np.shape(value) for value in found.values] == [(3,), (), (3,)]
    assert [np.shape(gradient) for gradient in found.grads] == [(3,), (), (3,)]
    np.testing.assert_allclose(found.grads[0], [0, 0, 2 * np.sin(0.7)], rtol=1e-6)
    assert not np.any(found.grads[1]) and not np.any(found.grads[2])


def test_every_step_of_a_long_run_has_its_own_gradient() -> None:
    """A thousand calls of one compiled step: each gradient is found by its token, not by a search among all calls."""

    @jax.jit
    def step(w: Any) -> Any:
        return w - 0.1 * jax.grad(lambda w: sonde.sow(w * 2, "h") ** 2)(w)

    def train(w: Any) -> Any:
        for _ in range(1000):
            w = step(w)
        return w

    _, records = sonde.capture(train, grads=True)(jnp.float32(3.0))
    values, grads = np.array(records["h"].values), np.array(records["h"].grads)
    assert values.shape == (1000,)
    np.testing.assert_array_equal(grads, 2 * values)


@pytest.mark.parametrize("calls", [1, 2])
def test_a_loop_of_length_zero_has_one_gradient_for_a_value(calls):
    body = lambda c, _: (sonde.sow(c * 2, "h"), None)

    def loss(x):
        for _ in range(calls):
            x, _ = jax.lax.scan(body, x, None, length=0)
        return x.sum()

    for f in (jax.grad(loss), jax.jit(jax.grad(loss))):
        _, records = sonde.capture(f, grads=True)(jnp.ones(3))
        assert [value.shape for value in records["h"].values] == [(0, 3)] * calls
        assert [gradient.shape for gradient in records["h"].grads] == [(0, 3)] * calls
