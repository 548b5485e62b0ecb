"""Runs the same code with `flax.nnx` and with `sonde.nnx`, and compares the results: values, or classes of errors.

A case is a function of the `nnx` module and of the options that go to every transform; it is run with graph updates
(the default), in graph mode without them, and in tree mode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.nnx
import jax
import jax.numpy as jnp
import numpy as np

import sonde.nnx

Case = Callable[[Any, dict[str, Any]], Any]


def models(nnx: Any) -> Any:
    """The Modules that cases use, made with either library."""

    class Counter(nnx.Module):
        def __init__(self, start: Any = 0.0):
            self.count = nnx.Variable(jnp.asarray(start, jnp.float32))
            self.w = nnx.Param(jnp.asarray(start, jnp.float32) + 2.0)
            self.flag = 3

        def __call__(self, x: Any) -> Any:
            self.count[...] += 1
            return self.w * x

    class Tied(nnx.Module):
        def __init__(self, start: Any = 1.0):
            self.a = nnx.Param(jnp.asarray(start, jnp.float32))
            self.b = self.a

    return Counter, Tied


def plain(x: Any) -> Any:
    """A result in a form that both libraries share."""
    for nnx in (flax.nnx, sonde.nnx):
        if isinstance(x, nnx.Variable):
            return plain(x.get_value())
        if isinstance(x, nnx.State):
            return plain(dict(nnx.to_pure_dict(x)))
        if isinstance(x, nnx.Module):
            return (type(x).__name__, plain(dict(nnx.to_pure_dict(nnx.state(x)))))
    if isinstance(x, dict):
        return {k: plain(v) for k, v in x.items()}
    if isinstance(x, (tuple, list)):
        return type(x)(map(plain, x)) if type(x) in (tuple, list) else tuple(map(plain, x))
    if isinstance(x, jax.ShapeDtypeStruct):
        return ("shape", x.shape, str(x.dtype))
    if hasattr(x, "dtype") or isinstance(x, (int, float)):
        return np.asarray(x)
    return x


def outcome(case: Case, nnx: Any, options: dict[str, Any]) -> Any:
    """What a case returns, or the class of the error that it raises."""
    try:
        return plain(case(nnx, options))
    except Exception as error:
        return type(error)


MODES = {
    "nothing set": {},
    "without graph updates": {"graph_updates": False},
    "trees": {"graph": False, "graph_updates": False},
}


def check(case: Case, *, modes: tuple[str, ...] = tuple(MODES)) -> None:
    """Asserts that both libraries agree."""
    for mode in modes:
        theirs = outcome(case, flax.nnx, MODES[mode])
        assert_same(outcome(case, sonde.nnx, MODES[mode]), theirs, mode)


def assert_same(ours: Any, theirs: Any, what: str) -> None:
    """Compares results; numbers up to rounding."""
    if isinstance(theirs, type):
        assert isinstance(ours, type) and issubclass(ours, theirs), f"{what}: {ours} instead of {theirs}"
        return
    assert jax.tree.structure(ours) == jax.tree.structure(theirs), f"{what}: {ours} instead of {theirs}"
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs)):
        if isinstance(b, np.ndarray):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=what)
            assert a.dtype == b.dtype, f"{what}: {a.dtype} instead of {b.dtype}"
        else:
            assert a == b, what
