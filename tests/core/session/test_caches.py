"""Caches between calls: compiled programs are reused, and the caches do not grow."""

import functools
import gc
import pickle
import types
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import sonde
import sonde.tools
from sonde.core.session.caches import ByIdentity, Programs


def compiled(f: Callable[[], Any]) -> int:
    """How many programs a call compiles."""
    count = 0

    def listen(event: str, *_: Any, **__: Any) -> None:
        nonlocal count
        count += event == "/jax/core/compile/backend_compile_duration"

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        f()
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    return count


def taken(x: Any) -> Any:
    return sonde.sow(x * 2, "a")


def other(x: Any) -> Any:
    return sonde.sow(x * 3, "b")


def is_small(state: Any) -> Any:
    return state[0] < 3


def body_of(state: Any) -> Any:
    return state[0] + 1, sonde.sow(state[1] * 2, "w")


PROGRAMS = {
    "cond": lambda x: lax.cond(x.sum() > 0, taken, other, x),
    "while": lambda x: lax.while_loop(is_small, body_of, (0, x))[1],
    "while in cond": lambda x: lax.cond(x.sum() > 0, lambda x: x, other, x),
    "mapped while": jax.vmap(lambda x: lax.while_loop(is_small, body_of, (x.astype(int), x))[1]),
    "scan": lambda x: lax.scan(lambda c, _: (taken(c), None), x, None, length=2)[0],
}


@pytest.mark.parametrize("options", [{}, {"grads": True}, {"last": 2}], ids=str)
@pytest.mark.parametrize("name", ["cond", "while", "mapped while"])
def test_what_is_not_jitted_is_compiled_once(name: str, options: dict[str, Any]) -> None:
    captured, x = sonde.capture(PROGRAMS[name], **options), jnp.ones(2)
    captured(x)
    captured(x)
    assert compiled(lambda: captured(x)) == 0


@pytest.fixture
def bounded() -> Any:
    """Sets the bound of kept programs, until the test ends."""
    before = sonde.set_cache_bound(2**40)
    sonde.cache_clear()
    yield sonde.set_cache_bound
    sonde.set_cache_bound(before)


def test_fresh_reduce_functions_do_not_keep_their_programs(bounded: Callable) -> None:
    bounded(10 * 2**20)
    f = jax.jit(lambda x: sonde.sow(x * 2, "h"))
    kept = []
    for i in range(20):
        reduce = lambda x, i=i: x + i
        kept.append(weakref.ref(reduce))
        assert sonde.capture(f, reduce=reduce)(1.0)[1]["h"].value == 2 + i
    del reduce
    gc.collect()
    assert 5 <= sum(ref() is not None for ref in kept) <= 10
    assert sonde.cache_info().bytes <= 10 * 2**20


def test_many_patterns_are_compiled_once_each(bounded: Callable) -> None:
    """Not more than 16 were kept: with 17, every round compiled all of them again."""
    del bounded

    @jax.jit
    def f(x: Any) -> Any:
        for i in range(20):
            x = sonde.sow(x + i, f"h{i}")
        return x

    inner = lambda x: f(x) * 2

    def round_of(g: Callable) -> None:
        for i in range(20):
            assert list(sonde.capture(g, f"h{i}")(1.0)[1]) == [f"h{i}"]

    for g in (f, inner):
        round_of(g)
        assert compiled(lambda: round_of(g)) == 0


def test_what_is_kept_can_be_seen_and_dropped(bounded: Callable) -> None:
    def step(x: Any) -> Any:
        return sonde.sow(x * 2, "h")

    f = jax.jit(step)
    sonde.capture(f)(1.0)
    sonde.capture(f)(jnp.ones(3))
    info = sonde.cache_info()
    assert (info.hits, info.misses, info.programs) == (1, 1, 2)
    (kept,) = info.functions
    assert kept.function.endswith("step")
    assert (kept.kept, kept.programs, kept.bytes) == (1, 2, info.bytes)
    assert "step: 2 programs" in repr(info)
    sonde.cache_clear()
    assert sonde.cache_info().programs == 0
    assert compiled(lambda: sonde.capture(f)(1.0)) == 1
    assert bounded(0) == 2**40
    assert sonde.cache_info().programs == 0
    assert sonde.capture(f)(1.0)[1]["h"].value == 2  # nothing is kept, and everything works
    with pytest.raises(ValueError, match="number of bytes, got -1"):
        sonde.set_cache_bound(-1)


def test_a_larger_program_counts_more(bounded: Callable) -> None:
    del bounded

    def size(n: int) -> int:
        def body(x: Any, _: Any) -> Any:
            for _ in range(n):
                x = jnp.sin(x)
            return sonde.sow(x, "h"), None

        f = jax.jit(lambda x: jax.lax.scan(body, x, length=3)[0])
        sonde.cache_clear()
        sonde.capture(f)(1.0)
        return sonde.cache_info().bytes

    assert size(100) - size(1) >= 99 * 2**14


def test_a_function_with_kept_programs_can_be_pickled() -> None:
    def f(x: Any) -> Any:
        return sonde.sow(x * 2, "h")

    inputs = jnp.ones((3, 2))
    sonde.tools.patch_sweep(f, "h", metric=jnp.sum)(2 * inputs, inputs)
    assert f.__dict__
    attributes = pickle.loads(pickle.dumps(f.__dict__))  # as cloudpickle does
    again = types.FunctionType(f.__code__, f.__globals__)
    again.__dict__.update(attributes)
    again_jitted = jax.jit(again)
    assert sonde.capture(again_jitted)(1.0)[1]["h"].value == 2
    assert sonde.tools.patch_sweep(again, "h", metric=jnp.sum)(2 * inputs, inputs)


@pytest.mark.parametrize("wrap", [functools.wraps, lambda f: lambda g: functools.update_wrapper(g, f)])
def test_a_function_with_the_attributes_of_another_is_itself(wrap: Callable) -> None:
    f = jax.jit(lambda x: sonde.sow(x * 2, "h"))
    assert sonde.capture(f)(1.0)[1]["h"].value == 2
    g = jax.jit(wrap(f)(lambda x: sonde.sow(x * 3, "h")))
    for _ in range(2):
        assert sonde.capture(g)(1.0)[1]["h"].value == 3
        assert sonde.capture(f)(1.0)[1]["h"].value == 2


def test_what_is_used_again_is_kept() -> None:
    f = jax.jit(lambda x: sonde.sow(x * 2, "h"))
    often = sonde.capture(f)
    for i in range(40):
        sonde.capture(f, reduce=lambda x, i=i: x + i)
        assert sonde.capture(f) is often


def test_an_object_that_owns_its_jitted_step_is_freed() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.scale = jnp.ones(3)
            self.step = jax.jit(self.run)

        def run(self, x: Any) -> Any:
            return sonde.sow(x * self.scale, "h")

    trainer = Trainer()
    assert sonde.capture(trainer.step)(2.0)[1]["h"].value.shape == (3,)
    assert sonde.capture(trainer.step) is sonde.capture(trainer.step)
    gone = weakref.ref(trainer)
    del trainer
    gc.collect()
    assert gone() is None


class Unhashable:
    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __call__(self, x: Any) -> Any:
        return x + 1


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_a_reduce_function_need_not_be_hashable(wrap: Callable) -> None:
    f = wrap(lambda x: sonde.sow(x * 2, "h"))
    assert sonde.capture(f, reduce=Unhashable())(1.0)[1]["h"].value == 3.0


class AnySite:
    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __call__(self, site: sonde.Site) -> bool:
        return site.name == "h"


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.vmap])
def test_a_predicate_need_not_be_hashable(wrap: Callable) -> None:
    f = wrap(lambda x: sonde.sow(sonde.sow(x * 2, "h"), "other"))
    assert list(sonde.capture(f, AnySite())(jnp.ones(2))[1]) == ["h"]
    with pytest.raises(sonde.errors.NoSuchSiteError, match="an object of type tests.core.session.test_caches.AnySite"):
        sonde.capture(wrap(jnp.sin), AnySite())(jnp.ones(2))


def test_a_captured_partial_of_a_jitted_function() -> None:
    f = jax.jit(lambda x, y: sonde.sow(x * y, "h"))
    assert sonde.capture(functools.partial(f, 2.0))(3.0)[1]["h"].value == 6.0


def test_the_engines_caches_do_not_grow():
    from sonde.core.interpret import rewrite
    from sonde.core.marks import site_search

    def entries():
        gc.collect()
        return len(site_search._equations.entries) + len(rewrite.PROGRAMS.entries)

    def look(n):
        for i in range(n):
            f = jax.jit(lambda x, i=i: sonde.sow(x * i, "h"))
            sonde.capture(lambda x: f(x))(jnp.ones(3))

    look(3)
    before = entries()
    look(20)
    assert entries() <= before + 2


class Jaxpr:
    """A fake jaxpr: equal to others, but not the same object."""

    def __eq__(self, other):
        return isinstance(other, Jaxpr)

    def __hash__(self):
        return 0


def test_entries_go_by_identity_and_go_with_their_jaxpr():
    cache, one, other = ByIdentity(Programs), Jaxpr(), Jaxpr()
    cache.of(one)["x"] = 1
    assert dict(cache.of(one)) == {"x": 1}
    assert dict(cache.of(other)) == {}
    del one
    gc.collect()
    assert len(cache.entries) == 1


def test_the_ways_to_look_at_one_jaxpr_are_bounded(bounded: Callable) -> None:
    bounded(100 * 2**12)
    cache, jaxpr = ByIdentity(Programs), Jaxpr()
    for i in range(1000):
        cache.of(jaxpr)[i] = i
    assert 0 < len(cache.of(jaxpr)) < 400
    assert 999 in cache.of(jaxpr)
