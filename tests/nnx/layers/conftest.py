"""Differential tests: a layer of Flax and the same layer here must start, compute, learn and end the same."""

from __future__ import annotations

import flax.nnx as fnnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.same_programs import names_of_outputs

from sonde import nnx


def plain(value) -> np.ndarray:
    """Any array as one that numpy can compare."""
    value = value.get_value() if isinstance(value, nnx.Variable | fnnx.Variable) else value
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    return np.asarray(value, np.float64) if jnp.issubdtype(value.dtype, jnp.inexact) else np.asarray(value)


def leaves(where, state) -> dict:
    """The state of a model by path, with the type of Variable at every place."""
    return {path: (type(x).__name__, str(x.dtype), plain(x)) for path, x in where.to_flat_state(state)}


def assert_same_state(ours: dict, theirs: dict, *, rtol: float = 0.0) -> None:
    assert list(ours) == list(theirs)
    for path, (kind, dtype, value) in theirs.items():
        assert ours[path][0] == kind or kind in ("ArrayImpl",), path
        assert ours[path][1] == dtype, path
        close(ours[path][2], value, rtol=rtol)


def close(ours, theirs, *, rtol: float) -> None:
    scale = np.abs(theirs[np.isfinite(theirs)]).max(initial=0.0) if theirs.dtype.kind == "f" else 0.0
    np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol * scale)


def tolerance(*arrays) -> float:
    return 2e-2 if any(x.dtype in (jnp.bfloat16, jnp.float16) for x in arrays) else 1e-6


@pytest.fixture
def same():
    """`same(make, call)`: make and call the layer in both libraries and compare everything that can be seen.

    Compared are initial values (to the last digit), how many random keys were used, outputs, the state after the call,
    and gradients of the sum of squared outputs with respect to parameters. The call is one compiled program, which does
    not run if it is the same for both.
    """

    def check(make, call, *, gradients: bool = True, rtol: float | None = None):
        made = []
        for where in (nnx, fnnx):
            rngs = where.Rngs(0, dropout=1)
            model = make(where, rngs)
            before = leaves(where, where.state(model))
            used = {name: int(rngs[name].count.get_value()) for name in ("default", "dropout")}
            made.append((before, used, *_traced(where, model, call, gradients)))
        assert_same_state(made[0][0], made[1][0])
        assert made[0][1] == made[1][1]
        if _form(nnx, made[0][2]) == _form(fnnx, made[1][2]):
            return
        ours, theirs = (_ran(where, *traced) for where, (_, _, *traced) in zip((nnx, fnnx), made))
        outputs = [jax.tree.leaves(output) for output in (ours[0], theirs[0])]
        limit = rtol if rtol is not None else tolerance(*outputs[1])
        assert [x.dtype for x in outputs[0]] == [x.dtype for x in outputs[1]]
        for a, b in zip(*outputs, strict=True):
            assert a.shape == b.shape
            close(plain(a), plain(b), rtol=limit)
        assert_same_state(ours[1], theirs[1], rtol=limit)
        assert list(ours[2]) == list(theirs[2])
        # Against the largest gradient of the layer: some are zero but for rounding.
        largest = max((np.abs(grad).max(initial=0.0) for grad in theirs[2].values()), default=0.0)
        limit = max(limit, 2e-6)
        for path, grad in theirs[2].items():
            np.testing.assert_allclose(ours[2][path], grad, rtol=limit, atol=limit * largest, err_msg=str(path))

    return check


def _traced(where, model, call, gradients: bool) -> tuple:
    """A call, traced, and its arguments. It returns the output, the state after it, and the gradients if asked."""
    graph, params, rest = where.split(model, where.Param, ...)

    def loss(params, rest):
        # Variables made inside may be written to inside.
        inner = where.merge(graph, params, jax.tree.map(lambda x: x, rest))
        output = call(where, inner)
        size = sum((x.astype(jnp.float32) ** 2).sum() for x in jax.tree.leaves(output)) if gradients else 0
        return size, (output, where.state(inner))

    def run(params, rest):
        if not gradients:
            return *loss(params, rest)[1], {}
        grads, (output, after) = jax.grad(loss, has_aux=True)(params, rest)
        return output, after, dict(where.to_flat_state(grads))

    return jax.jit(run).trace(params, rest), params, rest


def _form(where, traced) -> tuple:
    """What a program computes, and the paths, kinds and dtypes of what it returns."""
    output, after, grads = traced.out_info
    states = [(path, type(x).__name__) for path, x in (*where.to_flat_state(after), *grads.items())]
    arrays = [(x.shape, x.dtype) for x in jax.tree.leaves(traced.out_info)]
    return len(jax.tree.leaves(output)), states, arrays, names_of_outputs(traced)


def _ran(where, traced, params, rest) -> tuple:
    output, after, grads = traced.lower().compile()(params, rest)
    return output, leaves(where, after), {path: plain(x) for path, x in grads.items()}


@pytest.fixture
def draw():
    """Random arrays, the same in every run."""
    rng = np.random.default_rng(0)
    return lambda *shape, dtype=jnp.float32: jnp.asarray(rng.normal(size=shape), dtype)
