"""Functions with their own derivatives and `jax.checkpoint` under JAX's upgrade flags: the same records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import sonde
from sonde import Edit, capture, edit, sow

FLAGS = [name for name in ("jax_remat3", "jax_custom_jvp3", "jax_custom_vjp3") if hasattr(jax.config, name)]
X = jnp.array([0.5, -1.0, 2.0])


@pytest.fixture(params=["", *FLAGS])  # "": as JAX is without, in every version
def flag(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param:
        jax.config.update(request.param, True)
    yield request.param
    if request.param:
        jax.config.update(request.param, False)


def own_jvp(x: Any) -> Any:
    @jax.custom_jvp
    def f(x: Any) -> Any:
        return sow(jnp.sin(x), "h")

    f.defjvp(lambda primals, tangents: (f(*primals), 3 * tangents[0]))  # not the derivative of a sine
    return f(x)


def own_vjp(x: Any) -> Any:
    @jax.custom_vjp
    def f(x: Any, n: Any) -> Any:
        return sow(jnp.sin(x) * n, "h")

    f.defvjp(lambda x, n: (f(x, n), n), lambda n, ct: (3 * n * ct, None))
    return f(x, 2)


def scanned(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=3)[0]


FUNCTIONS = {
    "jvp": own_jvp,
    "vjp": own_vjp,
    "scan of jvp": scanned(own_jvp),
    "scan of vjp": scanned(own_vjp),
    "checkpoint": jax.checkpoint(lambda x: sow(jnp.sin(x), "h") * 2),
}


def with_records(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function that returns a number, and beside it this number and the records."""

    def run(x: Any) -> Any:
        out, records = f(x)
        return out, (out, records)

    return run


def loss(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: jnp.sum(f(x) ** 2)


PROGRAMS: dict[str, Callable[[Callable[[Any], Any]], Callable[[Any], Any]]] = {
    "eager": lambda f: lambda x: capture(f)(x),
    "jit": lambda f: lambda x: capture(jax.jit(f))(x),
    "grad inside": lambda f: lambda x: capture(jax.grad(loss(f)))(x),
    "grad outside": lambda f: jax.grad(with_records(capture(loss(f))), has_aux=True),
    "grad of jit outside": lambda f: jax.grad(with_records(jax.jit(capture(loss(f)))), has_aux=True),
    "vmap inside": lambda f: lambda x: capture(jax.vmap(f))(jnp.stack([x, 2 * x])),
    "vmap outside": lambda f: lambda x: jax.vmap(capture(f))(jnp.stack([x, 2 * x])),
    "jvp outside": lambda f: lambda x: jax.jvp(lambda x: capture(f)(x)[0], (x,), (x,)),
    "edited": lambda f: lambda x: jax.grad(loss(edit(f, {"h": lambda h: h * h})))(x),
    "gradients edited": lambda f: lambda x: edit(jax.grad(loss(f)), {"h": Edit(grad=lambda g: g * 5)})(x),
}


def numbers(found: Any) -> list[np.ndarray]:
    found = jax.tree.map(lambda x: dict(x) if isinstance(x, sonde.Records) else x, found)
    return [np.asarray(x) for x in jax.tree.leaves(found)]


# JAX has no forward derivative of a function with its own backward pass.
PAIRS = [(f, p) for f in FUNCTIONS for p in PROGRAMS if p != "jvp outside" or "vjp" not in f]


@pytest.mark.every(3)
@pytest.mark.parametrize(("function", "program"), PAIRS)
def test_the_same_as_without_the_flag(flag: str, function: str, program: str) -> None:
    run = PROGRAMS[program](FUNCTIONS[function])
    try:
        found = numbers(run(X))
    finally:
        if flag:
            jax.config.update(flag, False)
    expected = numbers(PROGRAMS[program](FUNCTIONS[function])(X))
    assert len(found) == len(expected) > 0
    for ours, theirs in zip(found, expected):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize("wrap", [jax.jit, lambda f: f])
def test_sites_in_a_scan3_are_an_error_that_names_the_flag(wrap: Any) -> None:
    if not hasattr(jax.config, "jax_scan3"):  # JAX 0.10 has no such scan: nothing to look at
        assert not hasattr(lax, "scan3")
        return
    jax.config.update("jax_scan3", True)
    try:
        with pytest.raises(sonde.errors.CaptureError, match=r"site 'h' .* jax_scan3 \(set it to False\)"):
            jax.jit(capture(wrap(scanned(lambda c: sow(jnp.sin(c), "h")))))(X)
    finally:
        jax.config.update("jax_scan3", False)
