"""Caches between calls: compiled programs are reused, and the caches do not grow."""

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import sonde
from sonde.core.keeping import Bounded, ByIdentity, JaxprCache


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


def test_fresh_reduce_functions_do_not_keep_their_programs() -> None:
    f = jax.jit(lambda x: sonde.sow(x * 2, "h"))
    kept = []
    for i in range(40):
        captured = sonde.capture(f, reduce=lambda x, i=i: x + i)
        kept.append(weakref.ref(captured))
        assert captured(1.0)[1]["h"].value == 2 + i
    del captured
    gc.collect()
    assert sum(ref() is not None for ref in kept) <= 16


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
    with pytest.raises(sonde.errors.NoSuchSiteError, match="AnySite object at"):
        sonde.capture(wrap(jnp.sin), AnySite())(jnp.ones(2))


def test_a_captured_partial_of_a_jitted_function() -> None:
    f = jax.jit(lambda x, y: sonde.sow(x * y, "h"))
    assert sonde.capture(functools.partial(f, 2.0))(3.0)[1]["h"].value == 6.0


def test_a_bounded_dict_forgets_its_oldest_entries() -> None:
    kept = Bounded(2)
    for i in range(4):
        kept[i] = i
    assert kept == {2: 2, 3: 3}


def test_the_engines_caches_do_not_grow():
    from sonde.core import rewrite, site_search

    def entries():
        gc.collect()
        return len(site_search._equations.entries) + len(rewrite._cache.entries)

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
    cache, one, other = JaxprCache(), Jaxpr(), Jaxpr()
    cache.of(one)["x"] = 1
    assert dict(cache.of(one)) == {"x": 1}
    assert dict(cache.of(other)) == {}
    del one
    gc.collect()
    assert len(cache.entries) == 1


def test_the_ways_to_look_at_one_jaxpr_are_bounded():
    cache, jaxpr = JaxprCache(), Jaxpr()
    for i in range(1000):
        cache.of(jaxpr)[i] = i
    assert 0 < len(cache.of(jaxpr)) < 1000
    assert 999 in cache.of(jaxpr)


def test_what_is_kept_by_identity_goes_with_its_object():
    made = []
    kept = ByIdentity(lambda key: made.append(1) or [key.__class__])
    one, equal = Jaxpr(), Jaxpr()
    assert kept.of(one) is kept.of(one)
    assert kept.of(one) is not kept.of(equal)
    assert made == [1, 1]
    del one
    gc.collect()
    assert len(kept.entries) == 1
