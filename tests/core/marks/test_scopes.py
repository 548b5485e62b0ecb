"""Scopes, held open by generators and tasks, and the paths that they give."""

from __future__ import annotations

import asyncio
import contextlib

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from tests.core.comparing import check_nothing_is_left, double, equal

import sonde
from sonde import capture, scope, sow
from sonde.core.marks.scopes import LoopName, ScopeName, path_under
from sonde.errors import ScopeError

X = jnp.array([0.5, -1.0, 2.0])


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

    with pytest.raises(ScopeError, match="site 'first' runs under scope 'held', which a suspended generator entered"):
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

    with pytest.raises(ScopeError, match=r"site 'mine'.* runs under scope 'held', which a suspended generator entered"):
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


@pytest.mark.parametrize("name", ["a/*/b", "*/b", "a/*/*"])
def test_only_the_last_part_of_a_scope_can_name_a_loop(name):
    with pytest.raises(sonde.errors.SiteNameError, match="must not have a part"):
        sonde.scope(name)


def test_a_module_whose_attribute_is_a_star_is_an_error():
    class Star(sonde.nnx.Module):
        def __init__(self):
            self.parts = sonde.nnx.Dict({"*": sonde.nnx.Linear(2, 2, rngs=sonde.nnx.Rngs(0))})

        def __call__(self, x):
            return self.parts["*"](x)

    model = Star()
    with pytest.raises(sonde.errors.SiteNameError, match=r"'parts/\*/in'"):
        sonde.capture(model, inside=model)(jnp.ones((1, 2)))
