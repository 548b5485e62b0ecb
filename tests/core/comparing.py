"""References that the tests of the engine compare with, and checks after every capture."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import sonde
from sonde import capture, sow
from sonde._array_text import short_place
from sonde.core.session.session import capture_state
from sonde.errors import CaptureError

X = jnp.array([0.5, -1.0, 2.0])


def equal(got: Any, want: Any) -> None:
    """Two pytrees of the same numbers, but for rounding."""
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, want)


def kinds(record: sonde.Record) -> list[list[str]]:
    """For every call of a record, what made each axis."""
    return [[axis.kind for axis in axes] for axes in record.axes]


def double(x: Any) -> Any:
    return sow(x * 2, "h") + 1


def check_nothing_is_left() -> None:
    """No capture runs, plain programs have no sites, and the next capture works."""
    assert capture_state() is None
    assert "sonde" not in str(jax.make_jaxpr(double)(X))
    equal(jax.jit(double)(X), X * 2 + 1)
    equal(capture(double)(X)[1]["h"].values, (X * 2,))
    equal(capture(jax.jit(double))(X)[1]["h"].values, (X * 2,))
    assert capture_state() is None


def seen_or_refused(f: Any, file: str) -> None:
    """Captures `f`: its site `inside` is in the records, or an error names it and its line in the file."""
    try:
        result, records = capture(f)(X)
    except CaptureError as error:
        assert "'inside'" in str(error)
        assert f"({short_place(f'{file}:1').removesuffix('1')}" in str(error)
        check_nothing_is_left()
        return
    equal(result, f(X))
    assert "inside" in records
