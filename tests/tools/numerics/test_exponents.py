"""Counts by exponent, and the statistics made from them on the host, against those computed on the device."""

from __future__ import annotations

from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from sonde.report.traits import traits, traits_of_rows
from sonde.tools.numerics import exponents
from sonde.tools.numerics.array_statistics import EDGES, NAMES, moments, moments_of_whole
from sonde.tools.numerics.exponents import Exponents, HostRows

TINY = np.finfo(np.float32).tiny


def traits_of_whole(array: np.ndarray, lead: int) -> dict[str, Any]:
    return traits_of_rows(HostRows.of(array, lead), array.dtype)


def rows(kind: str) -> np.ndarray:
    """Arrays with what is hard about floats, with two axes of loops in front."""
    made = np.random.default_rng(0).normal(size=(2, 3, 4, 5, 5)).astype(np.float32)
    flat = made.reshape(6, -1)
    if kind == "bad":
        flat[0, :4], flat[1, 0], flat[2], flat[3, :2] = [np.nan, np.inf, -np.inf, 0], np.nan, np.inf, -np.inf
    if kind == "small":
        flat[0], flat[1, :3], flat[2, :2] = 0, [TINY / 2, -TINY / 4, 0], 1
        flat[3], flat[4] = flat[3] * 2.0**-60, flat[4] * 2.0**70
    if kind == "shares":
        made[:] = np.exp(made) / np.exp(made).sum(-1, keepdims=True)
        made[0, 0, :, 1:] = 0.2
        made[0, 0, :, 0] = [1, 0, 0, 0, 0]
    return made


@pytest.mark.every(3)
@pytest.mark.parametrize("kind", ["usual", "bad", "small", "shares"])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("one_by_one", [True, False])
def test_the_host_makes_what_the_device_makes(kind: str, dtype: Any, one_by_one: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(exponents, "_FEW", 10 if one_by_one else 2)
    with np.errstate(all="ignore"):
        x = rows(kind).astype(dtype)
    for on_host, on_device in ((moments_of_whole, moments), (traits_of_whole, traits)):
        made = jax.jit(jax.vmap(jax.vmap(on_device)))(x)
        found = on_host(x, 2)
        assert found.keys() == made.keys()
        for name, expected in made.items():
            assert (found[name].shape, found[name].dtype.kind) == (expected.shape, expected.dtype.kind), name
            if name == "subnormal" or (kind == "small" and (name in ("counts", "alive", "whole") or "head_" in name)):
                continue  # a device may take subnormal numbers for zeros
            np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-6, err_msg=name)


def test_less_is_made_of_gradients_and_of_what_is_no_attention() -> None:
    usual, shares = (HostRows.of(rows(kind), 2) for kind in ("usual", "shares"))
    some = {name for name in traits_of_rows(usual, np.float32, all_of_them=False) if name.startswith("head_")}
    assert not some and "head_rows" in traits_of_rows(shares, np.float32, all_of_them=False)
    gradient = traits_of_rows(usual, np.float32, gradient=True, all_of_them=False)
    rows_of_gradients = {"rows", "rows_of_zero_sum"}  # they show along which axis a softmax was taken
    assert gradient.keys() == {"nan", "plus_inf", "minus_inf", "subnormal", "low", "high", *rows_of_gradients}
    assert "near_one" in traits_of_rows(usual, np.float32, gradient=True)


def test_subnormal_numbers_are_none_of_the_zeros() -> None:
    x = np.array([0.0, TINY / 2, -TINY / 4, TINY, 1.0], np.float32)
    found = traits_of_whole(x[None], 1)
    assert (found["subnormal"][0], found["whole"][0]) == (2, 2)
    assert moments_of_whole(x[None], 1, ["zeros"])["counts"].tolist() == [[5, 1]]
    half = traits_of_whole(np.array([[0, 2.0**-15, 2.0**-14, 1]], np.float16), 1)
    assert half["subnormal"][0] == 1


def test_histograms_have_the_bins_of_the_edges() -> None:
    x = np.concatenate([s * 2.0 ** np.arange(-30, 30, 0.25) for s in (1, -1)] + [[0.0]])
    for dtype in (np.float32, np.float64):
        row = x.astype(dtype)
        # A bin on the left of zero is open on the left: what is on its edge is one further out.
        magnitudes, _ = np.histogram(row[row > 0], EDGES)
        negative, _ = np.histogram(-row[row < 0], EDGES)
        expected = magnitudes + negative[::-1]
        expected[len(EDGES) // 2 - 1] += 1
        np.testing.assert_array_equal(Exponents.of(row).histogram(20), expected)
    bad = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)
    assert Exponents.of(bad).nonfinite == 3 and Exponents.of(bad).histogram(20).sum() == 1


def test_arrays_without_numbers() -> None:
    empty = np.zeros((2, 0, 3), np.float32)
    for on_host, on_device in ((moments_of_whole, moments), (traits_of_whole, traits)):
        found, made = on_host(empty, 1), jax.jit(jax.vmap(on_device))(empty)
        assert {k: np.shape(x) for k, x in found.items()} == {k: np.shape(x) for k, x in made.items()}
    whole = moments_of_whole(np.arange(6).reshape(2, 3), 1, NAMES)
    np.testing.assert_allclose(
        whole["floats"], jax.jit(jax.vmap(moments))(np.arange(6, dtype=np.int32).reshape(2, 3))["floats"], rtol=1e-6
    )
    scalar = moments_of_whole(np.full(1, 3.0, np.float32), 1)
    assert scalar["alive"].shape == (1, 0)
