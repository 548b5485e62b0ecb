"""What is seen of an array at a glance is what it holds."""

from __future__ import annotations

import base64
import struct
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sonde.display import glance as module
from sonde.display.glance import bars, glance, picture


@pytest.mark.parametrize("limit", [10**9, 0], ids=["on the host", "on the device"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8", "int32", "uint32", "bool"])
def test_numbers(dtype, limit, monkeypatch):
    monkeypatch.setattr(module, "_ON_HOST", limit)
    x = jnp.array([[0, 1, 0], [0, 3, 0]]).astype(dtype)
    seen = glance(x)
    assert (seen.low, seen.high) == (0, 1 if dtype == "bool" else 3)
    assert (seen.nans, seen.infs, seen.zeros, seen.dead, seen.units) == (0, 0, False, 2, 3)
    assert seen.alarm == "2 of 3 units dead" and not seen.is_broken
    assert sum(seen.bins) == 6


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_not_finite(dtype):
    seen = glance(jnp.array([jnp.nan, jnp.inf, -jnp.inf, 2.0, -1.0], dtype))
    assert (seen.low, seen.high, seen.nans, seen.infs) == (-1, 2, 1, 2)
    assert seen.alarm == "1 NaN, 2 Inf" and seen.is_broken and seen.range == "-1 to 2"
    nothing = glance(jnp.full(3, jnp.nan, dtype))
    assert (nothing.low, nothing.range, bars(nothing.bins)) == (None, "", "") and nothing.alarm == "3 NaN"


def test_zeros_and_constants():
    assert glance(jnp.zeros((2, 2))).alarm == "all zero"
    assert glance(jnp.zeros(())).alarm == ""  # one number may be zero
    constant = glance(np.full(4, 2.5))
    assert constant.range == "2.5" and constant.alarm == ""


def test_what_has_no_numbers():
    seen = []
    jax.jit(lambda x: seen.append(glance(x)))(jnp.ones(2))
    seen += [glance(jax.random.key(0)), glance(jnp.zeros((0, 3))), glance(jax.ShapeDtypeStruct((2,), "float32"))]
    seen += [glance("text"), glance(jnp.ones(2, "complex64"))]
    assert seen == [None] * 6


def test_a_picture_is_a_png_of_the_array():
    address = picture(jnp.array([[1.0, -1.0], [0.0, jnp.nan]]))
    data = base64.b64decode(address.removeprefix("data:image/png;base64,"))
    assert data.startswith(b"\x89PNG") and struct.unpack(">II", data[16:24]) == (2, 2)
    start = data.index(b"IDAT") + 4
    rows = zlib.decompress(data[start : data.index(b"IEND") - 8])
    assert rows == bytes([0, 214, 69, 48, 48, 105, 214, 0, 245, 245, 245, 0, 0, 0])
    assert picture(jnp.ones((3, 500, 700))) and not picture(jnp.ones(())) and not picture("text")
