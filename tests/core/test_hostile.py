"""Hostile programs: threads, exceptions, interleaving, odd values, and no trace of Sonde after a capture."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from tests.core.comparing import check_nothing_is_left, double, equal
from tests.freezing import freeze

from sonde import capture, scope, sow
from sonde.core.session.session import capture_state

X = jnp.array([0.5, -1.0, 2.0])


# ---------------------------------------------------------------------------------------------------------------------
# Threads, nesting, exceptions
# ---------------------------------------------------------------------------------------------------------------------


def test_threads_capture_at_once():
    jitted = jax.jit(lambda x: sow(x * 2, "h") + 1)
    n, rounds = 4, 8
    barrier = threading.Barrier(n)
    failures: list[BaseException] = []

    def work(number):
        def f(x):
            with scope(f"t{number}"):
                return jitted(sow(x + number, "in"))

        try:
            for i in range(rounds):
                barrier.wait(30)
                x = jnp.float32(i)
                if number == 0:  # one that does not look at all
                    equal(f(x), i * 2 + 1)
                    assert capture_state() is None
                    continue
                result, records = capture(f)(x)
                assert list(records) == [f"t{number}/in", f"t{number}/h"]
                equal((result, records[f"t{number}/h"].value), ((i + number) * 2 + 1, (i + number) * 2))
        except BaseException as error:
            barrier.abort()
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    check_nothing_is_left()


class Oops(Exception):
    pass


def fails(x) -> Any:
    sow(x * 2, "before")
    raise Oops


@pytest.mark.parametrize(
    "f",
    [
        fails,
        jax.jit(fails),
        lambda x: jax.jit(fails)(x),
        lambda x: lax.scan(lambda c, row: (fails(row), row), jnp.zeros(()), x),
        lambda x: lax.cond(x.sum() > 0, fails, lambda x: x, x),
        lambda x: lax.while_loop(lambda c: c[0] > 0, fails, x),
        jax.grad(lambda x: fails(x).sum()),
        lambda x: jax.checkpoint(fails)(x),
        lambda x: jax.vmap(fails)(x),
    ],
    ids=["plain", "jit", "jit inside", "scan", "cond", "while", "grad", "remat", "vmap"],
)
def test_exceptions_leave_nothing_behind(f):
    for looked in (capture(f, grads=True), jax.jit(capture(f))):
        with pytest.raises(Oops):
            looked(X)
        check_nothing_is_left()
    with pytest.raises(Oops):  # caught by the function itself
        f(X)

    def recovers(x):
        with scope("s"), pytest.raises(Oops):
            f(x)
        return sow(x, "after")

    _, records = capture(recovers)(X)
    equal(records["after"].value, X)
    check_nothing_is_left()


def test_an_exception_in_a_nested_capture():
    def f(x):
        with pytest.raises(Oops):
            capture(fails)(x)
        return sow(x, "after")

    _, records = capture(f)(X)
    assert list(records)[-1] == "after"
    check_nothing_is_left()


# ---------------------------------------------------------------------------------------------------------------------
# JAX's own checks and modes
# ---------------------------------------------------------------------------------------------------------------------


@jax.custom_jvp
def with_jvp(x):
    return double(jnp.sin(x))


@with_jvp.defjvp
def _jvp_rule(primals, tangents):
    return with_jvp(*primals), jnp.cos(*primals) * 2 * tangents[0]


@jax.custom_vjp
def with_vjp(x):
    return double(jnp.sin(x))


with_vjp.defvjp(lambda x: (with_vjp(x), jnp.cos(x)), lambda slope, g: (2 * slope * g,))


def one_device():
    return jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))


CHECKED = {
    "plain": lambda x: double(x).sum(),
    "jit": jax.jit(lambda x: double(x).sum()),
    "scan": lambda x: lax.scan(lambda c, row: (jnp.sin(c + double(row)), row), jnp.zeros(()), x)[0],
    "remat": jax.checkpoint(lambda x: double(jnp.sin(x)).sum()),
    "scan of remat": lambda x: lax.scan(jax.checkpoint(lambda c, r: (jnp.sin(c + double(r)), r)), 0.0, x)[0],
    "cond": lambda x: lax.cond(x[0] > 0, double, lambda x: x, x).sum(),
    "vmap": lambda x: jax.vmap(double)(x).sum(),
    "custom_jvp": lambda x: with_jvp(x).sum(),
    "custom_vjp": lambda x: with_vjp(x).sum(),
    "scan of custom_jvp": lambda x: lax.scan(lambda c, _: (with_jvp(c), None), x, None, length=2)[0].sum(),
    "jit of custom_vjp": lambda x: jax.jit(with_vjp)(x).sum(),
    "shard_map": lambda x: jax.jit(jax.shard_map(double, mesh=one_device(), in_specs=jax.P("d"), out_specs=jax.P("d")))(
        x
    ).sum(),
}


@pytest.fixture(scope="module")
def few_objects():
    """Freezes what other tests left, which the search for leaks would visit for each trace."""
    freeze()


@pytest.mark.parametrize("name", CHECKED)
@pytest.mark.usefixtures("few_objects")
def test_no_leaked_tracers(name):
    f = CHECKED[name]
    with jax.checking_leaks():
        for looked in (capture(f), capture(jax.jit(f)), jax.jit(capture(f))):
            looked(X)[1]["h"].values[0].block_until_ready()
        for grads in (False, True):
            for looked in (
                capture(jax.grad(f), grads=grads),
                capture(jax.jit(jax.grad(f)), grads=grads),
                jax.jit(capture(jax.grad(f), grads=grads)),
            ):
                looked(X)[1]["h"].values[0].block_until_ready()


@pytest.mark.parametrize("name", CHECKED)
@pytest.mark.usefixtures("few_objects")
def test_a_program_that_checks_for_leaks(name):
    def step(x):
        with jax.checking_leaks():
            return jax.jit(jax.grad(CHECKED[name]))(x)

    for grads in (False, True):
        assert "h" in capture(step, grads=grads)(X)[1]


@pytest.mark.parametrize("name", ["custom_jvp", "custom_vjp", "shard_map"])
def test_jax_checks_what_it_is_given(name):
    """That a program has as many operands as it has names for, among others."""
    with jax.enable_checks(True):
        f = jax.jit(lambda x: jnp.sin(CHECKED[name](x)))
        assert "h" in capture(lambda x: f(x), grads=True)(X)[1]


# ---------------------------------------------------------------------------------------------------------------------
# Without a capture
# ---------------------------------------------------------------------------------------------------------------------


def program(mark):
    def f(x):
        with scope("s"):
            x = jax.jit(lambda x: mark(jnp.sin(x), "a"))(x)
        x = lax.scan(lambda c, row: (mark(c * row, "b"), mark({"r": row, "s": "t"}, "c")["r"]), x, x)[0]
        x = lax.cond(x.sum() > 0, lambda x: mark(x, "d"), lambda x: x, x)
        x = jax.vmap(lambda x: mark(x * 2, "e"))(x)
        x = jax.checkpoint(lambda x: mark(jnp.cos(x), "f"))(x)
        return lax.while_loop(lambda x: x.sum() < 1, lambda x: mark(x + 1, "g"), lax.stop_gradient(x)).sum() + x.sum()

    return f


def test_without_a_capture_the_program_is_the_one_without_sites():
    with_sites, without = program(sow), program(lambda value, name: value)
    capture(with_sites)(X)  # an earlier capture leaves nothing behind
    capture(jax.jit(with_sites))(X)
    for transform in (lambda f: f, jax.grad, jax.jit, lambda f: jax.jit(jax.grad(f))):
        a, b = jax.make_jaxpr(transform(with_sites))(X), jax.make_jaxpr(transform(without))(X)
        assert str(a) == str(b)
        assert not a.effects
    assert jax.jit(with_sites).lower(X).as_text() == jax.jit(without).lower(X).as_text()


def test_captures_leave_the_fast_path_of_other_functions_on():
    f: Any = jax.jit(lambda x: sow(x * 2, "h"))
    other: Any = jax.jit(lambda x: x + 1)
    f(X), other(X)
    sizes = f._cache_size(), other._cache_size()
    assert sizes == (1, 1)
    for _ in range(3):
        capture(double)(X)
        capture(jax.jit(double))(X)
        f(X), other(X)
    assert (f._cache_size(), other._cache_size()) == sizes


# ---------------------------------------------------------------------------------------------------------------------
# Memory
# ---------------------------------------------------------------------------------------------------------------------


def test_captures_of_fresh_functions_leave_no_growing_caches():
    functions, arrays = [], []

    def look(i):
        w = jnp.full(3, float(i))

        def f(x):
            return jnp.sum(sow(x * w, "h") ** 2)

        functions.append(weakref.ref(f))
        x = X + i
        _, records = capture(f)(x)
        arrays.append(weakref.ref(records["h"].value))
        if i % 10 == 0:  # compiling is what takes the time
            jitted = jax.jit(lambda x: f(x))
            functions.append(weakref.ref(jitted))
            capture(lambda x: jitted(x))(x)
            capture(jitted)(x)
            capture(jax.grad(f), grads=True)(x)
            capture(lambda x: lax.scan(lambda c, row: (c + sow(row * w[0], "s"), None), 0.0, x)[0])(x)

    for i in range(200):
        look(i)
    gc.collect()
    assert sum(ref() is not None for ref in arrays) <= 1
    alive = [ref() for ref in functions if ref() is not None]
    assert len(alive) <= 2, f"{len(alive)} of {len(functions)} functions are kept"
