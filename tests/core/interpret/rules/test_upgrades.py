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


@pytest.fixture
def scan3() -> Iterator[bool]:
    has_flag = hasattr(jax.config, "jax_scan3")  # JAX 0.10 has no such scan: there the tests run without
    if has_flag:
        jax.config.update("jax_scan3", True)
    yield has_flag
    if has_flag:
        jax.config.update("jax_scan3", False)


# Outside of `jit` JAX makes a `while_loop` of such a scan before a capture meets it: its record is that of one.
SCANS = {name: PROGRAMS[name] for name in ("jit", "vmap outside", "vmap inside")} | {
    "capture in jit": lambda f: lambda x: jax.jit(capture(f))(x),
    "edited": lambda f: lambda x: edit(jax.jit(f), {"h": Edit(lambda h: h * h, iterations=1)})(x),
}


@pytest.mark.parametrize("program", SCANS)
def test_scans_that_keep_what_they_carry_in_refs(scan3: bool, program: str) -> None:
    f = scanned(lambda c: sow(jnp.sin(c), "h"))
    try:
        expected_plain = f(X)
        found = numbers(SCANS[program](f)(X))
    except NotImplementedError:  # JAX cannot map this scan
        assert scan3 and program == "vmap inside"
        with pytest.raises(NotImplementedError):
            jax.vmap(f)(jnp.stack([X, 2 * X]))
        return
    if scan3:
        jax.config.update("jax_scan3", False)
    np.testing.assert_allclose(expected_plain, f(X), rtol=1e-6)
    expected = numbers(SCANS[program](f)(X))
    assert len(found) == len(expected) > 0
    for ours, theirs in zip(found, expected):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_sites_in_a_reversed_scan3_are_an_error(scan3: bool) -> None:
    """JAX 0.11 and 0.12 run it forwards: there is no right order of its rows."""
    f = capture(jax.jit(lambda x: lax.scan(lambda c, w: (sow(c * w, "h"), c), x, X, reverse=True)))
    if not scan3:
        assert f(1.0)[1]["h"].value.shape == (3,)
        return
    with pytest.raises(sonde.errors.CaptureError, match="site 'h' .* inside a 'Scan3'"):
        f(1.0)


def root(x: Any) -> Any:
    """The square root, whose derivative is that of the solution and not of the solver."""

    def solve(f: Any, guess: Any) -> Any:
        return lax.fori_loop(0, 20, lambda _, y: sow(y - f(y) / (2 * y), "step"), guess)

    return lax.custom_root(lambda y: y**2 - x, jnp.ones_like(x), solve, lambda g, y: y / g(jnp.ones_like(y)))


def unrolled_root(x: Any) -> Any:
    return lax.fori_loop(0, 20, lambda _, y: sow(y - (y**2 - x) / (2 * y), "step"), jnp.ones_like(x))


AROUND: dict[str, Callable[[Any], Any]] = {
    "jit": lambda f: jax.jit(capture(f)),
    "grad": lambda f: jax.grad(with_records(capture(f)), has_aux=True),
    "grad of jit": lambda f: jax.grad(with_records(jax.jit(capture(jax.jit(f)))), has_aux=True),
    "jvp": lambda f: lambda x: jax.jvp(lambda x: capture(f)(x)[0], (x,), (3.0,)),
    "vmap": lambda f: lambda x: jax.vmap(capture(f))(jnp.stack([x, 2 * x])),
    "vmap of grad": lambda f: lambda x: jax.vmap(jax.grad(lambda x: capture(f)(x)[0]))(jnp.stack([x, 2 * x])),
}


@pytest.mark.parametrize("around", AROUND)
def test_operations_with_their_own_rules_inside_other_transforms(around: str) -> None:
    found, expected = numbers(AROUND[around](root)(2.0)), numbers(AROUND[around](unrolled_root)(2.0))
    assert len(found) == len(expected) > 0
    for ours, theirs in zip(found, expected):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def own_operation(rules: str) -> Callable[[Any], Any] | None:
    """An operation as users write them, whose derivative is not that of what it runs; None before JAX 0.12."""
    try:
        from jax.experimental.hijax import HiPrim  # pyright: ignore
    except ImportError:
        return None

    class Sine(HiPrim):
        def __init__(self, aval: Any, jaxpr: Any) -> None:
            self.in_avals, self.out_aval, self.params = (aval,), aval, {"jaxpr": jaxpr}
            super().__init__()

        def expand(self, x: Any) -> Any:
            return jax.core.eval_jaxpr(self.jaxpr, (), x)[0]  # pyright: ignore

        if rules == "forward":

            def jvp(self, primals: Any, tangents: Any) -> Any:
                return self(*primals), 3 * tangents[0]
        else:

            def vjp_fwd(self, has_tangent: Any, x: Any) -> Any:
                return self(x), ()

            def vjp_bwd_retval(self, saved: Any, cotangent: Any) -> Any:
                return (3 * cotangent,)

    def f(x: Any) -> Any:
        aval = jax.core.typeof(x) if hasattr(jax.core, "typeof") else jax.typeof(x)
        jaxpr = jax.make_jaxpr(lambda x: sow(jnp.sin(x), "h"))(x)
        return Sine(aval, jaxpr.jaxpr if hasattr(jaxpr, "jaxpr") else jaxpr)(x)

    return f


@pytest.mark.parametrize("rules", ["forward", "reverse"])
@pytest.mark.parametrize("around", [name for name in AROUND if name != "jvp"])
@pytest.mark.every(3)
def test_operations_of_users(rules: str, around: str) -> None:
    f = own_operation(rules) or (own_jvp if rules == "forward" else own_vjp)
    expected = numbers(AROUND[around](own_jvp)(2.0))
    if f is own_vjp:  # twice as much, for lack of the class
        expected = numbers(AROUND[around](own_vjp)(2.0))
    found = numbers(AROUND[around](f)(2.0))
    assert len(found) == len(expected) > 0
    for ours, theirs in zip(found, expected):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
