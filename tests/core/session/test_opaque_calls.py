"""Sites that a capture cannot record: in host callbacks, other threads, and functions compiled ahead of time."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

import sonde
from sonde import capture, sow
from sonde.errors import CaptureError

X = np.arange(3, dtype=np.float32)
TYPE = jax.ShapeDtypeStruct(X.shape, X.dtype)


def on_host(x):
    return np.asarray(sow(jnp.asarray(x) * 2, "inside"))


def looking_on(x):
    def look(x):
        on_host(x)

    jax.debug.callback(look, x)
    return x


FUNCTIONS = {
    "pure_callback": lambda x: jax.pure_callback(on_host, TYPE, sow(x, "before")),
    "io_callback": lambda x: io_callback(on_host, TYPE, x),
    "debug.callback": looking_on,
    "in a scan": lambda x: lax.scan(lambda c, _: (jax.pure_callback(on_host, TYPE, c), None), x, None, length=1)[0],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_site_in_a_function_of_the_host_is_an_error(name):
    f = FUNCTIONS[name]
    for g in (capture(f), capture(jax.jit(f)), capture(lambda x: jax.jit(f)(x)), jax.jit(capture(f))):
        with pytest.raises(
            Exception, match=r"site 'inside' \(.*test_opaque_calls.py:\d+\) runs where the capture cannot see"
        ):
            jax.block_until_ready(g(X))
            jax.effects_barrier()
    jax.block_until_ready([f(X), jax.jit(f)(X)])  # no capture, no error
    jax.effects_barrier()


def test_a_function_of_the_host_without_sites_is_called_as_ever():
    f = jax.jit(lambda x: jax.pure_callback(lambda x: x * 2, TYPE, sow(x, "before")))
    result, records = capture(lambda x: f(x))(X)
    np.testing.assert_array_equal(result, X * 2)
    assert list(records) == ["before"]


def test_a_function_that_was_compiled_ahead_of_time_is_refused():
    compiled = jax.jit(lambda x: sow(x * 2, "inside")).lower(X).compile()
    with pytest.raises(CaptureError, match="compiled ahead of time"):
        capture(lambda x: compiled(x))(X)
    np.testing.assert_array_equal(compiled(X), X * 2)
    looking: Any = capture(jax.jit(lambda x: sow(x * 2, "inside")))
    ahead = looking.lower(X).compile()
    np.testing.assert_array_equal(ahead(X)[1]["inside"].value, X * 2)


def test_functions_that_equinox_keeps_out_of_line_are_seen():
    import equinox as eqx
    from equinox.internal import noinline

    def f(x):
        return sow(jnp.sin(x), "y") * 2

    x, outside = jnp.ones(3), noinline(f)
    for run in (outside, jax.jit(lambda x: outside(x))):
        result, records = capture(run)(x)
        assert jnp.array_equal(result, f(x)) and jnp.array_equal(records["y"].value, jnp.sin(x))
    _, records = capture(jax.grad(lambda x: outside(x).sum()), grads=True)(x)
    assert jnp.array_equal(records["y"].grad, jnp.full(3, 2.0))
    with pytest.raises(CaptureError, match="noinline that is an argument"):
        capture(eqx.filter_jit(lambda f, x: f(x)))(outside, x)
    result, records = capture(eqx.filter_jit(lambda f, x: sow(f(x), "z")))(noinline(jnp.sin), x)
    assert list(records) == ["z"] and jnp.allclose(result, jnp.sin(x))
    assert jnp.array_equal(outside(x), f(x))


def in_a_thread(run: Callable[[], Any]) -> Any:
    results: list[Any] = []
    started = threading.Thread(target=lambda: results.append(run()))
    started.start()
    started.join()
    return results[0] if results else jnp.zeros(3)


def in_a_pool(run: Callable[[], Any]) -> Any:
    return POOL.submit(run).result()


def in_an_asyncio_thread(run: Callable[[], Any]) -> Any:
    async def main() -> Any:
        return await asyncio.to_thread(run)

    return asyncio.run(main())


POOL = concurrent.futures.ThreadPoolExecutor(1)
doubled = jax.jit(lambda x: sonde.sow(x * 2, "h"))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("elsewhere", [in_a_thread, in_a_pool, in_an_asyncio_thread])
@pytest.mark.parametrize("double", [lambda x: sonde.sow(x * 2, "h"), doubled], ids=["", "jit"])
def test_a_site_in_another_thread_of_the_program_is_an_error(elsewhere: Callable, double: Callable) -> None:
    x = jnp.ones(3)
    POOL.submit(lambda: doubled(x)).result()  # a thread, and a program, that are older than the capture
    f = lambda x: elsewhere(lambda: double(x))
    np.testing.assert_array_equal(f(x), 2 * x)
    with pytest.raises(CaptureError, match="cannot see it: .* in a callback or another thread"):
        sonde.capture(f)(x)
    np.testing.assert_array_equal(f(x), 2 * x)


def test_a_thread_that_outlives_the_capture_goes_on_as_usual() -> None:
    ended = threading.Event()
    answers: list[Any] = []

    def work() -> None:
        ended.wait(60)
        answers.append(doubled(jnp.ones(3)))
        answers.append(sonde.capture(jax.grad(lambda x: doubled(x).sum()), grads=True)(jnp.ones(3)))

    started = threading.Thread(target=work)

    def f(x: Any) -> Any:
        started.start()
        return sonde.sow(x, "here")

    assert list(sonde.capture(f)(1.0)[1]) == ["here"]
    ended.set()
    started.join()
    np.testing.assert_array_equal(answers[0], 2 * np.ones(3))
    np.testing.assert_array_equal(answers[1][1]["h"].value, 2 * np.ones(3))
    np.testing.assert_array_equal(answers[1][1]["h"].grad, np.ones(3))


def test_threads_without_sites_run() -> None:
    f = lambda x: in_a_thread(lambda: jnp.sin(x)) + in_a_pool(lambda: jnp.sin(x)) + sonde.sow(x, "h")
    result, records = sonde.capture(f)(jnp.ones(3))
    np.testing.assert_allclose(result, 2 * np.sin(np.ones(3)) + 1, rtol=1e-6)
    assert list(records) == ["h"]


def test_an_exported_function_is_refused() -> None:
    exported = jax.export.export(doubled)(jnp.ones(3))
    f = lambda x: exported.call(x) + sonde.sow(x, "here")
    with pytest.raises(CaptureError, match="compiled ahead of time or exported, whose program is fixed"):
        sonde.capture(f)(jnp.ones(3))
    np.testing.assert_array_equal(f(jnp.ones(3)), 3 * np.ones(3))
