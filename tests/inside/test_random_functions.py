"""Random programs in all of Python: what `inside=` sees of one is what the same program with marks by hand sees."""

from __future__ import annotations

from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.inside.by_hand import Observed, X, Y, arrays_of, drawn, sown

import sonde


def same(where: Any, got: list[Any], want: list[Any], *, exact: bool = True) -> None:
    assert len(got) == len(want), where
    for a, b in zip(got, want):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), where
        tolerance = {"rtol": 0, "atol": 0} if exact else {"rtol": 2e-4, "atol": 1e-5}
        np.testing.assert_allclose(a, b, **tolerance, err_msg=str(where))


def are_arrays(record: Any) -> bool:
    return all(isinstance(value, jax.Array) for value in record.values)


def half(value: Any) -> Any:
    return value * 0.5 + 0.25


def check_language(seed: int) -> None:
    """A program without transforms: all values, lines and edits, bit for bit, against plain Python."""
    found = drawn(seed, transforms=False)
    if found is None:
        return
    texts, plain = found
    want = Observed(texts, f"hand_{seed}")
    codes = plain.codes()
    inside, deep = sonde.Inside(*plain.own()), sonde.Inside(*plain.own(), expressions=True)
    for look, grads in ((inside, False), (inside, True), (deep, False)):
        result, records = sonde.capture(plain.program, inside=look, grads=grads)(X, Y)
        same("result", [result], [want.result])
        assert set(want.calls) - set(records) == set()
        assert look is deep or set(records) == set(want.calls)
        for path, calls in want.calls.items():
            assert len(records[path].values) == len(calls), path
            for value, (arrays, _) in zip(records[path].values, calls):
                same(path, arrays_of(value), arrays)
    lines: dict[str, list[int]] = {}
    for info in sonde.sites(plain.program, inside=inside)(X, Y):
        lines.setdefault(info.path, []).append(int(info.source.rpartition(":")[2]))
    assert lines == {path: [line for _, line in calls] for path, calls in want.calls.items()}
    records = sonde.capture(plain.program, inside=inside)(X, Y)[1]
    arrays = [path for path, record in records.items() if are_arrays(record)]
    untouched = sonde.edit(plain.program, {path: lambda v: v for path in arrays}, inside=inside)(X, Y)
    same("edits that change nothing", [untouched], [want.result])
    path = Random(seed).choice(arrays)
    edited = sonde.edit(plain.program, {path: half}, inside=inside)(X, Y)
    same(f"edit of {path}", [edited], [Observed(texts, f"edited_{seed}", {path: half}).result])
    assert all(f.__code__ is code for f, code in codes)


def check_transforms(seed: int) -> None:
    """A program with transforms, jitted and differentiated, against the same program with `sonde.sow`."""
    found = drawn(seed, transforms=True)
    if found is None:
        return
    texts, plain = found
    hand = sown(texts, f"sown_{seed}")
    inside = sonde.Inside(*plain.own())
    weights = jnp.array([1.0, 2.0, 3.0])
    ways: dict[str, Any] = {
        "eager": lambda f: f,
        "jit": lambda f: jax.jit(lambda x, y: f(x, y)),
        "grad": lambda f: jax.value_and_grad(lambda x, y: (f(x, y) * weights).sum(), argnums=(0, 1)),
    }
    for way, wrap in ways.items():
        try:
            plain_result = wrap(plain.program)(X, Y)
        except Exception:  # not every program has a derivative
            continue
        exact, grads = way == "eager", way == "grad"
        result, records = sonde.capture(wrap(plain.program), inside=inside, grads=grads)(X, Y)
        by_hand, want = sonde.capture(wrap(hand.program), grads=grads)(X, Y)
        same((way, "result"), jax.tree.leaves(result), jax.tree.leaves(plain_result), exact=exact)
        same((way, "result by hand"), jax.tree.leaves(result), jax.tree.leaves(by_hand), exact=exact)
        assert set(records) == set(want), way
        for path, record in want.items():
            mine = records[path]
            assert len(mine.values) == len(record.values), (way, path)
            for a, b in zip(mine.values, record.values):
                same((way, path), arrays_of(a), arrays_of(b), exact=exact)
            if grads and are_arrays(record):  # what other names refer to can only be read
                assert [g is None for g in mine.grads] == [g is None for g in record.grads], (way, path)
                pairs = [(a, b) for a, b in zip(mine.grads, record.grads) if a is not None]
                same((way, path, "gradient"), [a for a, _ in pairs], [b for _, b in pairs], exact=False)
        path = Random(seed).choice([path for path, record in want.items() if are_arrays(record)])
        if way != "grad":
            edited = sonde.edit(wrap(plain.program), {path: half}, inside=inside)(X, Y)
            same((way, "edit", path), [edited], [sonde.edit(wrap(hand.program), {path: half})(X, Y)], exact=exact)


@pytest.mark.every(2)
@pytest.mark.parametrize("seed", range(4))
def test_language(seed):
    check_language(seed)


@pytest.mark.every(2)
@pytest.mark.parametrize("seed", range(2))
def test_transforms(seed):
    check_transforms(seed)


@pytest.mark.thorough
@pytest.mark.parametrize("first", range(100, 400, 20))
def test_language_thoroughly(first):
    for seed in range(first, first + 20):
        check_language(seed)


@pytest.mark.thorough
@pytest.mark.parametrize("first", range(100, 200, 10))
def test_transforms_thoroughly(first):
    for seed in range(first, first + 10):
        check_transforms(seed)
