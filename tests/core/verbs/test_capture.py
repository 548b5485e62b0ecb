"""What can be captured, what cannot, and captures inside captures."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from tests.core.comparing import equal

import sonde
from sonde import capture, scope, sow
from sonde.errors import CaptureError

X = jnp.arange(3.0)


def test_what_cannot_be_captured():
    with pytest.raises(TypeError, match="capture takes a callable, got 3 of type int"):
        sonde.capture(3)

    async def later(x):
        return x

    def lazily(x):
        yield x

    for g, what in ((later, "a coroutine function"), (lazily, "a generator function")):
        with pytest.raises(TypeError, match=f"capture cannot look into {what}"):
            sonde.capture(g)

    def apart(x):
        with jax.ensure_compile_time_eval():
            sow(jnp.ones(2), "apart")
        return x

    # Eagerly the capture's own level is the one that evaluates; inside a jitted function there is nothing to record on.
    assert list(sonde.capture(apart)(X)[1]) == ["apart"]
    with pytest.raises(CaptureError, match=r"site 'apart' \(.*test_capture.py:\d+\) runs where the capture cannot see"):
        sonde.capture(lambda x: jax.jit(apart)(x))(X)


def test_code_run_n_times_has_n_values_in_program_order():
    def f(x):
        for i in range(3):
            x = sow(x * 2, "double")
            sow(x + i, f"other{i}")
        return x

    result, records = capture(f)(X)
    equal(result, X * 8)
    assert list(records) == ["double", "other0", "other1", "other2"]
    equal(records["double"].values, (X * 2, X * 4, X * 8))


class Model:
    def __init__(self, w):
        self.w = w

    def __call__(self, x):
        return sow(x * self.w, "call")

    def method(self, x, *, plus):
        return sow(x * self.w, "method") + plus

    @classmethod
    def of_class(cls, x):
        return sow(x, "class")

    @staticmethod
    def static(x):
        return sow(x, "static")


def test_closures_partials_methods_and_callable_objects():
    model, w = Model(2.0), jnp.array(3.0)

    def closure(x):
        return sow(x * w, "closure")

    wanted = {
        "closure": (closure, X * 3),
        "call": (model, X * 2),
        "method": (functools.partial(model.method, plus=1), X * 2),
        "class": (model.of_class, X),
        "static": (Model.static, X),
    }
    for name, (f, want) in wanted.items():
        for looked in (capture(f), jax.jit(capture(f)), capture(jax.jit(f)), capture(functools.partial(f))):
            equal(looked(X)[1][name].values, (want,))
    result, records = capture(model.method)(X, plus=5)
    equal((result, records["method"].value), (X * 2 + 5, X * 2))


def test_capture_inside_of_transforms():
    inside = lambda x: capture(lambda x: jnp.sum(sow(x * 2, "h") ** 2))(x)
    want = (jnp.sum(4 * X**2), X * 2)
    for looked in (inside, jax.jit(inside), jax.checkpoint(inside)):
        result, records = looked(X)
        equal((result, records["h"].value), want)
    (value, records), gradient = jax.value_and_grad(inside, has_aux=True)(X)
    equal((value, records["h"].value, gradient), (*want, 8 * X))
    _, records = jax.vmap(inside)(jnp.stack([X, X + 1]))
    equal(records["h"].value, jnp.stack([X, X + 1]) * 2)
    _, (_, records) = lax.scan(lambda c, x: (c, inside(x)), 0.0, jnp.stack([X, X + 1]))
    equal(records["h"].value, jnp.stack([X, X + 1]) * 2)


def double(x):
    return sow(x * 2, "h") + 1


def test_nested_captures_see_the_same_sites():
    def f(x):
        result, records = capture(double)(x)
        return result, records["h"].value

    (_, inner), records = capture(f)(X)
    equal((inner, records["h"].values), (X * 2, (X * 2,)))
    (_, inner), records = capture(jax.jit(f))(X)
    equal((inner, records["h"].values), (X * 2, (X * 2,)))
    (_, inner), records = jax.jit(capture(lambda x: jax.jit(f)(x)))(X)
    equal((inner, records["h"].values), (X * 2, (X * 2,)))


def test_nested_captures_with_other_patterns_and_scopes():
    def inner(x):
        with scope("block"):
            return sow(sow(x * 2, "a") + 1, "b")

    def f(x):
        with scope("outer"):
            result, records = capture(inner, "block/a")(x)
        return result, records

    (_, inside), records = capture(f, "**/b")(X)
    assert list(inside) == ["block/a"]  # paths count from the capture inwards
    assert list(records) == ["outer/block/b"]
    equal((inside["block/a"].value, records["outer/block/b"].value), (X * 2, X * 2 + 1))


def test_nested_captures_of_gradients():
    loss = lambda x: jnp.sum(sow(x * 2, "h") ** 2)

    def f(x):
        return capture(jax.grad(loss), grads=True)(x)

    for wrap in (lambda f: f, jax.jit):
        (gradient, inside), records = capture(wrap(f), grads=True)(X)
        equal(gradient, 8 * X)
        for found in (inside, records):
            equal((found["h"].values, found["h"].grads), ((X * 2,), (4 * X,)))
        (_, inside), records = capture(wrap(f))(X)
        equal((inside["h"].grads, records["h"].values), ((4 * X,), (X * 2,)))
        assert records["h"].grads == ()


def test_a_capture_inside_a_scan_inside_a_capture():
    def f(x):
        return lax.scan(lambda c, row: (c, capture(double)(row)[1]["h"].value), 0.0, x)[1]

    result, records = capture(f)(X)
    equal((result, records["h"].value), (X * 2, X * 2))


@pytest.mark.parametrize("f", [3, None, "f", jnp.ones(2)])
def test_capture_of_something_that_is_not_callable(f):
    with pytest.raises(TypeError, match=f"capture takes a callable, got .*{type(f).__name__}"):
        capture(f)


def scoped_generator(x):
    with scope("held"):
        yield sow(x * 2, "first")
        yield sow(x * 3, "second")


def test_generator_and_coroutine_functions_are_refused():
    async def coroutine(x):
        return sow(x, "h")

    with pytest.raises(TypeError, match="generator function"):
        capture(scoped_generator)
    with pytest.raises(TypeError, match="coroutine function"):
        capture(coroutine)


def test_the_function_runs_once():
    calls = []

    def f(x):
        calls.append(1)
        return sow(x, "h")

    capture(f)(X)
    assert len(calls) == 1
    capture(jax.grad(lambda x: f(x).sum()), grads=True)(X)
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"last": 0}, ValueError, "capture(last=...) must be at least 1, got 0"),
        ({"last": "2"}, TypeError, "capture(last=...) must be a number of iterations, got '2' of type str"),
        ({"last": True}, TypeError, "capture(last=...) must be a number of iterations, got True of type bool"),
        ({"reduce": 3}, TypeError, "capture(reduce=...) must be a function of a value, got 3 of type int"),
    ],
)
def test_options_that_do_not_fit(options, error, words):
    with pytest.raises(error) as caught:
        capture(jnp.sin, **options)
    assert words in str(caught.value)


@pytest.mark.parametrize("grads", [False, True])
def test_every_call_of_a_captured_jitted_function_has_whole_records(grads):
    """JAX calls a compiled function another way from the second time on."""

    def loss(w, x):
        pair = sow((w * 2, x * 3), "pair")
        return jnp.sum(sow(sow(pair, "same"), "again")[0] * pair[1])

    program = jax.jit(lambda w, xs: jax.vmap(jax.grad(loss, 1), (None, 0))(w, xs))
    look = capture(program, grads=grads)
    for i in range(3):
        w, xs = jnp.arange(3.0) + i, jnp.arange(6.0).reshape(2, 3) - i
        result, records = look(w, xs)
        expected = jnp.stack([w * 2] * 2), xs * 3
        equal(result, 3 * expected[0])
        for name in ("pair", "same", "again"):
            equal(records[name].value, expected)
        equal(jax.tree.map(lambda x: x[1], records)["pair"].value, (expected[0][1], expected[1][1]))
        assert jax.tree.structure(records) == jax.tree.structure(look.eval_shape(w, xs)[1])
        if grads:
            equal(records["pair"].grad[1], expected[0])
    compiled = look.lower(w, xs).compile()
    equal(compiled(w, xs)[1]["again"].value, expected)
