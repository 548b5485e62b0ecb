"""The records up to the point where a captured function failed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sonde import capture, partial_records, scope, sow

X = jnp.array([0.5, -1.0, 2.0])


def test_what_was_seen_before_a_failure():
    def f(x):
        h = jax.jit(lambda x: sow(x * 2, "h"))(x)
        with scope("next"):
            sow(h + 1, "g")
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full") as caught:
        capture(f)(X)
    records = partial_records(caught.value)
    assert list(records) == ["h", "next/g"]
    np.testing.assert_array_equal(records["next/g"].value, X * 2 + 1)

    with pytest.raises(OSError) as caught:
        capture(lambda x: capture(f)(sow(x, "before")))(X)
    assert list(partial_records(caught.value)) == ["before", "h", "next/g"]

    with pytest.raises(OSError) as caught:
        capture(jax.jit(f))(X)
    assert list(partial_records(caught.value)) == []
    with pytest.raises(OSError) as caught, jax.disable_jit():
        capture(jax.jit(f))(X)
    assert list(partial_records(caught.value)) == ["h", "next/g"]
    assert list(partial_records(OSError())) == []
