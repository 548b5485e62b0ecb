"""What must not go wrong: threads, exceptions, interleaving, odd values, and what is left behind when nobody looks."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.jet import jet

from sonde import capture, records_before, scope, sow
from sonde.core.context import looking
from sonde.errors import CaptureError, NoSuchSiteError, ScopeError, SiteNameError

X = jnp.array([0.5, -1.0, 2.0])


def equal(got: Any, want: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, want)


def double(x):
    return sow(x * 2, "h") + 1


def check_nothing_is_left() -> None:
    """Nobody looks, plain programs have no sites, and the next capture works."""
    assert looking() is None
    assert "sonde" not in str(jax.make_jaxpr(double)(X))
    equal(jax.jit(double)(X), X * 2 + 1)
    equal(capture(double)(X)[1]["h"].values, (X * 2,))
    equal(capture(jax.jit(double))(X)[1]["h"].values, (X * 2,))
    assert looking() is None


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
                    assert looking() is None
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


def test_a_thread_started_by_the_function_is_not_looked_at():
    found = []

    def f(x):
        thread = threading.Thread(target=lambda: found.append((looking(), sow(x * 3, "thread"))))
        thread.start()
        thread.join()
        return sow(x * 2, "h")

    _, records = capture(f)(X)
    assert list(records) == ["h"]
    assert found[0][0] is None
    equal(found[0][1], X * 3)


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


def test_what_was_seen_before_a_failure():
    def f(x):
        h = jax.jit(lambda x: sow(x * 2, "h"))(x)
        with scope("next"):
            sow(h + 1, "g")
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full") as caught:
        capture(f)(X)
    records = records_before(caught.value)
    assert list(records) == ["h", "next/g"]
    np.testing.assert_array_equal(records["next/g"].value, X * 2 + 1)

    with pytest.raises(OSError) as caught:
        capture(lambda x: capture(f)(sow(x, "before")))(X)
    assert list(records_before(caught.value)) == ["before", "h", "next/g"]

    with pytest.raises(OSError) as caught:
        capture(jax.jit(f))(X)
    assert list(records_before(caught.value)) == []
    with pytest.raises(OSError) as caught, jax.disable_jit():
        capture(jax.jit(f))(X)
    assert list(records_before(caught.value)) == ["h", "next/g"]
    assert list(records_before(OSError())) == []


def test_an_exception_in_a_nested_capture():
    def f(x):
        with pytest.raises(Oops):
            capture(fails)(x)
        return sow(x, "after")

    _, records = capture(f)(X)
    assert list(records)[-1] == "after"
    check_nothing_is_left()


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


@pytest.mark.parametrize("f", [3, None, "f", jnp.ones(2)])
def test_capture_of_something_that_is_not_callable(f):
    with pytest.raises(TypeError, match=f"capture takes a callable, got .*{type(f).__name__}"):
        capture(f)


# ---------------------------------------------------------------------------------------------------------------------
# Generators and tasks
# ---------------------------------------------------------------------------------------------------------------------


def scoped_generator(x):
    with scope("held"):
        yield sow(x * 2, "first")
        yield sow(x * 3, "second")


def test_a_generator_that_is_run_to_its_end():
    _, records = capture(lambda x: (list(scoped_generator(x)), sow(x, "after"))[1])(X)
    assert list(records) == ["held/first", "held/second", "after"]


def test_a_generator_that_outlives_the_capture():
    kept = []

    def f(x):
        generator = scoped_generator(x)
        kept.append(generator)
        return next(generator)

    _, records = capture(f)(X)
    equal(records["held/first"].value, X * 2)
    check_nothing_is_left()
    equal(next(kept[0]), X * 3)  # nobody looks any more
    kept[0].close()
    check_nothing_is_left()


def test_generators_that_are_interleaved():
    def f(x):
        a, b = scoped_generator(x), scoped_generator(x)
        next(a), next(b)
        a.close()  # leaves "held" while "held/held" is open

    with pytest.raises(ScopeError, match="reverse order"):
        capture(f)(X)
    check_nothing_is_left()


def test_generator_and_coroutine_functions_are_refused():
    async def coroutine(x):
        return sow(x, "h")

    with pytest.raises(TypeError, match="generator function"):
        capture(scoped_generator)
    with pytest.raises(TypeError, match="coroutine function"):
        capture(coroutine)


def test_tasks_that_capture_at_once():
    async def work(number):
        found = []
        for i in range(3):
            await asyncio.sleep(0)
            _, records = capture(lambda x: sow(x * number, f"t{number}"))(X + i)
            found.append(records)
            await asyncio.sleep(0)
            assert looking() is None
        return found

    async def main():
        return await asyncio.gather(*map(work, range(3)))

    for number, found in enumerate(asyncio.run(main())):
        for i, records in enumerate(found):
            assert list(records) == [f"t{number}"]
            equal(records[f"t{number}"].value, (X + i) * number)
    check_nothing_is_left()


def test_a_loop_run_inside_a_capture():
    async def step(number, x):
        await asyncio.sleep(0)
        with scope(f"t{number}"):
            x = sow(x * number, "h")
        await asyncio.sleep(0)
        return x

    async def main(x):
        return await asyncio.gather(*(step(i, x) for i in range(3)))

    _, records = capture(lambda x: asyncio.run(main(x)))(X)
    assert list(records) == ["t0/h", "t1/h", "t2/h"]
    equal([r.value for r in records.values()], [X * 0, X, X * 2])
    check_nothing_is_left()


def test_tasks_that_hold_scopes_open_across_an_await_are_an_error():
    async def step(number, x):
        with scope(f"t{number}"):
            await asyncio.sleep(0)
            return sow(x * number, "h")

    async def main(x):
        return await asyncio.gather(*(step(i, x) for i in range(3)))

    with pytest.raises(ScopeError):
        capture(lambda x: asyncio.run(main(x)))(X)
    check_nothing_is_left()


# ---------------------------------------------------------------------------------------------------------------------
# JAX's own checks and modes
# ---------------------------------------------------------------------------------------------------------------------

CHECKED = {
    "plain": lambda x: double(x).sum(),
    "jit": jax.jit(lambda x: double(x).sum()),
    "scan": lambda x: lax.scan(lambda c, row: (jnp.sin(c + double(row)), row), jnp.zeros(()), x)[0],
    "remat": jax.checkpoint(lambda x: double(jnp.sin(x)).sum()),
    "scan of remat": lambda x: lax.scan(jax.checkpoint(lambda c, r: (jnp.sin(c + double(r)), r)), 0.0, x)[0],
    "cond": lambda x: lax.cond(x[0] > 0, double, lambda x: x, x).sum(),
    "vmap": lambda x: jax.vmap(double)(x).sum(),
}


@pytest.mark.parametrize("name", CHECKED)
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


def test_disable_jit():
    def f(x):
        x = jax.jit(double)(x)
        x = lax.scan(lambda c, row: (sow(c + row, "c"), row), 0.0, x)[0]
        x = lax.cond(x > 0, lambda x: sow(x, "yes"), lambda x: sow(-x, "no"), x)
        return lax.while_loop(lambda x: x < 10, lambda x: sow(x * 2, "w"), x)

    with jax.disable_jit():
        result, records = capture(f)(X)
        want = f(X)
    equal(result, want)
    equal(records["h"].value, X * 2)
    assert len(records["w"].values) == 1 or records["w"].counts != (None,)
    check_nothing_is_left()


def test_a_site_in_compile_time_evaluation_is_seen_or_refused():
    def f(x):
        with jax.ensure_compile_time_eval():
            return x + sow(jnp.ones(3) * 2, "inside")

    for g in (
        f,
        jax.jit(f),
        lambda x: jax.jit(f)(x),
        lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0],
    ):
        seen_or_refused(g)
    with pytest.raises(CaptureError, match=r"'inside' \(.*test_hostile.py:\d+\).*ensure_compile_time_eval"):
        capture(lambda x: jax.jit(f)(x))(X)


def seen_or_refused(f, name="inside"):
    """Captures `f`: the site is in the records, or an error names it and its line. Returns the value, or None."""
    try:
        result, records = capture(f)(X)
    except CaptureError as error:
        assert f"'{name}'" in str(error)
        assert "test_hostile.py:" in str(error)
        check_nothing_is_left()
        return None
    equal(result, f(X))
    assert name in records
    return records[name].values


def linear_solve(b):
    solve = lambda matvec, b: sow(b / 2, "inside")
    return lax.custom_linear_solve(lambda x: 2 * x, b, solve, symmetric=True)


def root(x):
    return lax.custom_root(
        lambda y: y**2 - 4, x * 0 + 1, lambda f, y: sow(y * 0 + 2, "inside"), lambda g, y: y / g(jnp.ones_like(y))
    )


@jax.custom_batching.custom_vmap
def with_rule(x):
    return sow(x * 2, "inside")


@with_rule.def_vmap
def _rule(axis_size, in_batched, x):
    return sow(x * 2, "inside"), True


@pytest.mark.parametrize(
    "f", [linear_solve, root, with_rule, jax.vmap(with_rule)], ids=["solve", "root", "vmap", "mapped"]
)
@pytest.mark.parametrize(
    "wrap", [lambda f: f, jax.jit, lambda f: jax.jit(lambda x: f(x) + 0)], ids=["", "jit", "in jit"]
)
def test_primitives_that_hide_their_inside_are_seen_or_refused(f, wrap):
    seen_or_refused(wrap(f))


def test_primitives_that_hide_their_inside_in_a_scan_are_seen_or_refused():
    for f in (linear_solve, with_rule):
        seen_or_refused(lambda x: lax.scan(lambda c, row: (c + f(row), None), 0.0, x)[0])


def test_taylor_series():
    f = lambda x: jnp.sin(sow(x * x, "inside"))
    series = lambda x: jet(f, (x,), ((jnp.ones_like(x), jnp.zeros_like(x)),))
    for g in (series, jax.jit(series)):
        for grads in (False, True):
            result, records = capture(g, grads=grads)(X)
            jax.tree.map(equal, result, series(X))
            equal(records["inside"].value, X * X)


# ---------------------------------------------------------------------------------------------------------------------
# Odd values
# ---------------------------------------------------------------------------------------------------------------------

ODD = {
    "bf16": jnp.ones(3, jnp.bfloat16),
    "int8": jnp.arange(3, dtype=jnp.int8),
    "bool": jnp.array([True, False]),
    "complex": jnp.array([1 + 2j]),
    "empty": jnp.zeros((0, 3)),
    "scalar": jnp.float32(2),
    "numpy": np.arange(3.0, dtype=np.float32),
    "numpy scalar": np.float32(3.0),
    "key": jax.random.key(0),
    "keys": jax.random.split(jax.random.key(0), 3),
    "old key": jax.random.PRNGKey(0),
}


def same(a, b):
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
        a, b = jax.random.key_data(a), jax.random.key_data(b)
    assert np.array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("name", ODD)
def test_odd_arrays(name):
    value = ODD[name]
    for wrap in (lambda f: f, jax.jit):
        same(capture(wrap(lambda v: sow(v, "v")))(value)[1]["v"].value, value)
        same(jax.jit(capture(wrap(lambda v: sow(v, "v"))))(value)[1]["v"].value, value)
    scanned = lambda v: lax.scan(lambda c, _: (c, sow(v, "v") is None), 0, None, length=2)
    rows = capture(scanned)(value)[1]["v"].value
    same(rows[1], value)
    branched = lambda p, v: lax.cond(p, lambda v: (sow(v, "v"), 0)[1], lambda v: 1, v)
    same(capture(branched)(True, value)[1]["v"].value, value)
    record = capture(branched)(False, value)[1]["v"]
    assert record.value.dtype == value.dtype
    assert not record.taken[0]
    looped = lambda v: lax.while_loop(lambda i: i < 2, lambda i: (sow(v, "v"), i + 1)[1], 0)
    same(capture(looped)(value)[1]["v"].value, value)


@pytest.mark.parametrize("name", [n for n, v in ODD.items() if v.ndim and v.shape[0]])
def test_odd_arrays_under_vmap(name):
    value = ODD[name]
    same(capture(jax.vmap(lambda v: sow(v, "v")))(value)[1]["v"].value, jnp.asarray(value))


def test_gradients_beside_odd_arrays():
    def loss(x):
        tree = sow({"x": x * 2, "key": jax.random.key(0), "n": jnp.arange(2), "b": jnp.ones(2, jnp.bfloat16)}, "tree")
        return jnp.sum(tree["x"] ** 2)

    for wrap in (lambda f: f, jax.jit):
        gradient = capture(wrap(jax.grad(loss)), grads=True)(X)[1]["tree"].grad
        equal(gradient["x"], 4 * X)
        equal(gradient["n"], jnp.zeros(2))


def test_leaves_that_are_no_arrays_are_kept():
    class Thing:
        pass

    thing = Thing()

    def f(x):
        tree = {"x": x * 2, "none": None, "s": "text", "i": 3, "f": 2.5, "b": True, "c": 1j, "t": (thing, [], {})}
        back = sow(tree, "tree")
        assert back["s"] == "text"
        assert back["t"][0] is thing
        assert type(back["i"]) is int
        return back["x"]

    for looked in (capture(f), jax.jit(capture(f)), capture(jax.jit(f)), capture(lambda x: jax.jit(f)(x))):
        value = looked(X)[1]["tree"].value
        equal(value.pop("x"), X * 2)
        assert value == {"none": None, "s": "text", "i": 3, "f": 2.5, "b": True, "c": 1j, "t": (thing, [], {})}
        assert [type(value[k]) for k in "ifb"] == [int, float, bool]


@pytest.mark.parametrize("value", [None, "text", 3, 2.5, (), {}, [None, "a"]], ids=repr)
def test_sites_without_any_array(value):
    def f(x):
        assert sow(value, "v") == value
        return x

    for looked in (capture(f), jax.jit(capture(f)), capture(jax.jit(f)), capture(jax.grad(lambda x: f(x).sum()))):
        assert looked(X)[1]["v"].values == (value,)
    records = capture(lambda x: lax.scan(lambda c, r: (f(c), r), x, jnp.arange(2)))(X)[1]
    assert records["v"].values == (value,)


# ---------------------------------------------------------------------------------------------------------------------
# When nobody looks
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
    capture(with_sites)(X)  # that somebody looked before leaves nothing behind
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


def test_a_capture_traces_a_jitted_function_once():
    traced = []

    @jax.jit
    def f(x):
        traced.append(looking() is not None)
        return sow(x * 2, "h")

    f(X), f(X)
    assert traced == [False]
    for _ in range(3):
        capture(lambda x: f(x))(X)
    assert traced == [False, True]
    f(X)
    assert traced == [False, True]
    for _ in range(3):
        capture(f)(X)
    assert traced in ([False, True], [False, True, True])


def test_the_function_runs_once():
    calls = []

    def f(x):
        calls.append(1)
        return sow(x, "h")

    capture(f)(X)
    assert len(calls) == 1
    capture(jax.grad(lambda x: f(x).sum()), grads=True)(X)
    assert len(calls) == 2


# ---------------------------------------------------------------------------------------------------------------------
# Records are pytrees
# ---------------------------------------------------------------------------------------------------------------------


def looked_at(x):
    def f(x):
        tree = sow({"x": x * 2, "k": jnp.arange(2), "s": "text"}, "tree")
        y = jax.vmap(lambda y: sow({"y": y, "w": x}, "mapped")["y"])(x)
        z = lax.scan(lambda c, row: (sow(c + row, "carry"), row), 0.0, tree["x"])[0]
        return lax.cond(z > 0, lambda z: sow(z, "branch"), lambda z: z, z) + y.sum()

    return capture(jax.grad(f), grads=True)(x)[1]


def test_records_are_an_immutable_mapping():
    records = looked_at(X)
    assert list(records) == ["tree", "mapped", "carry", "branch"]
    assert len(records) == 4
    assert "tree" in records
    assert "other" not in records
    with pytest.raises(KeyError, match="nearest: 'tree'"):
        records["tre"]
    with pytest.raises(TypeError):
        records["tree"] = 1  # pyright: ignore[reportIndexIssue]


def test_records_of_two_runs_have_one_structure():
    a, b = looked_at(X), looked_at(X + 1)
    assert jax.tree.structure(a) == jax.tree.structure(b)
    difference = jax.tree.map(lambda x, y: y - x if x.dtype != bool else y, a, b)
    equal(difference["tree"].value["x"], jnp.full(3, 2.0))
    equal(difference["carry"].value, jnp.array([2.0, 4.0, 6.0]))
    assert difference["tree"].value["s"] == "text"
    compiled = capture(jax.jit(lambda x: looked_at(x)))(X)[0]
    assert jax.tree.structure(a) == jax.tree.structure(compiled)


def test_records_cross_transforms():
    records = looked_at(X)
    through_jit = jax.jit(lambda r: r)(records)
    assert jax.tree.structure(through_jit) == jax.tree.structure(records)
    equal(jax.jit(lambda r: r["carry"].grad)(records), records["carry"].grad)
    loss = lambda x: sum(jnp.sum(v) for v in capture(lambda x: sow(x**2, "h"))(x)[1]["h"].values)
    equal(jax.grad(loss)(X), 2 * X)
    many = jax.vmap(looked_at)(jnp.stack([X, X + 1]))
    assert many["tree"].value["x"].shape == (2, 3)
    rows = lax.scan(lambda c, x: (c, looked_at(x)), 0, jnp.stack([X, X + 1]))[1]
    equal(rows["carry"].value, many["carry"].value)
    second = looked_at(X + 1)
    for found in (many, rows):
        equal(found["carry"].value[1], second["carry"].value)
        equal(found["carry"].grad[1], second["carry"].grad)
        assert found["mapped"].value["y"].shape == (2, 3)
        assert found["mapped"].value["w"].shape == (2, 3, 3)
        equal(found["mapped"].value["w"][1], second["mapped"].value["w"])
    one = jax.tree.map(lambda x: x[1], many)
    equal(one["mapped"].value, second["mapped"].value)


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


def test_the_engines_caches_do_not_grow():
    from sonde.core import inside, rewrite

    def entries():
        gc.collect()
        return len(inside._answers._entries) + len(rewrite._cache._entries)

    def look(n):
        for i in range(n):
            f = jax.jit(lambda x, i=i: sow(x * i, "h"))
            capture(lambda x: f(x))(X)

    look(3)
    before = entries()
    look(20)
    assert entries() <= before + 2
