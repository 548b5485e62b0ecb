"""What a thread looks for and which scopes are open in it: threads, generators and tasks."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from tests.core.comparing import check_nothing_is_left, double, equal

from sonde import capture, scope, sow
from sonde.core.context import (
    RUNNING_CAPTURES,
    Looking,
    LoopName,
    ScopeName,
    look,
    looking,
    path_under,
    unchanged_after,
)
from sonde.errors import ScopeError

X = jnp.array([0.5, -1.0, 2.0])


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
    equal(next(kept[0]), X * 3)  # the capture has ended
    kept[0].close()
    check_nothing_is_left()


def test_generators_that_are_interleaved():
    def f(x):
        a, b = scoped_generator(x), scoped_generator(x)
        next(a), next(b)

    with pytest.raises(ScopeError, match="site 'first' runs under scope 'held', which a generator entered"):
        capture(f)(X)
    check_nothing_is_left()


def test_scopes_that_are_left_in_another_order():
    def f(x):
        held = scoped_generator(x)
        next(held)
        with scope("other"):
            held.close()  # leaves "held" while "held/other" is open

    with pytest.raises(ScopeError, match="reverse order"):
        capture(f)(X)
    check_nothing_is_left()


def jitted_site(x):
    return jax.jit(lambda x: sow(x, "mine"))(x)


def looped_site(x):
    return lax.scan(lambda c, _: (sow(c, "mine"), None), x, None, length=2)[0]


@pytest.mark.parametrize("meanwhile", [lambda x: sow(x, "mine"), jitted_site, looped_site], ids=["site", "jit", "scan"])
@pytest.mark.parametrize("around", [lambda f: f, jax.jit], ids=["eager", "in jit"])
def test_a_site_while_a_generator_holds_a_scope_open(around, meanwhile):
    def f(x):
        held = scoped_generator(x)
        next(held)
        return meanwhile(x)

    with pytest.raises(ScopeError, match=r"site 'mine'.* runs under scope 'held', which a generator entered"):
        capture(around(f))(X)
    check_nothing_is_left()


def test_scopes_that_generators_may_hold_open():
    @contextlib.contextmanager
    def named(name):
        with scope(name):
            yield

    def steps(x):
        for i in range(2):
            with named(f"step{i}"):
                x = sow(x * 2, "h")
            yield x

    def f(x):
        held = scoped_generator(x)
        y = jnp.where(next(held) > 0, x, 2 * x)  # no site meanwhile
        held.close()
        with named("around"), contextlib.ExitStack() as stack:
            stack.enter_context(scope("in"))
            y = sow(y, "h")
        return sum(sow(step, "step") for step in steps(y))

    _, records = capture(f)(X)
    assert list(records) == ["held/first", "around/in/h", "step0/h", "step", "step1/h"]
    check_nothing_is_left()


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


def test_what_is_looked_for_holds_for_a_block_and_blocks_nest():
    outer, inner = Looking(grads=False), Looking(grads=True, depth=2)
    with look(outer):
        with look(inner):
            assert (looking(), RUNNING_CAPTURES.mine()) == (inner, 2)
            with look(None):
                assert looking() is None
        assert (looking(), RUNNING_CAPTURES.mine()) == (outer, 1)
    assert (looking(), RUNNING_CAPTURES.mine()) == (None, 0)


def test_what_is_looked_for_is_one_object_as_long_as_it_is_the_same():
    with look(Looking(grads=True)):
        first = looking()
    with look(Looking(grads=True)):
        assert looking() is first
    with look(Looking(grads=False)):
        assert looking() is not first
    assert Looking(grads=True, sows=False) != first
    assert (Looking(grads=True), hash(Looking(grads=True))) == (first, hash(first))


def test_a_block_leaves_the_thread_as_it_was_whatever_was_left_open():
    with unchanged_after():
        look(Looking(grads=False)).__enter__()
        scope("left/open").__enter__()
        assert looking() is not None
    assert (looking(), RUNNING_CAPTURES.mine()) == (None, 0)
    check_nothing_is_left()


def test_scopes_without_a_capture_are_nothing():
    with scope("a"), scope("b"):
        assert "a/" not in str(jax.make_jaxpr(double)(X))
    equal(capture(double)(X)[1]["h"].value, X * 2)


def test_a_scope_can_be_entered_again():
    block = scope("block")

    def f(x):
        for _ in range(2):
            with block:
                x = sow(x + 1, "h")
        return x

    assert len(capture(f)(X)[1]["block/h"].values) == 2


def test_paths_under_names():
    names = (ScopeName("a"), "of jax.named_scope", LoopName("blocks/*"), ScopeName("b/c"))
    assert path_under(names, "", 1) == "a/blocks/b/c/"
    assert path_under((), "x/", 1) == "x/"
    assert path_under((LoopName("*"), ScopeName("b")), "x/", 1) == "x/b/"
