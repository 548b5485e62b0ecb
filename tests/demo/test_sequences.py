"""The sequences of the demo are what the demo says they are."""

from __future__ import annotations

import jax
import numpy as np

from sonde.demo.sequences import HALF, LENGTH, TOKENS, clean_and_corrupt, repeated


def test_repeated_sequences_repeat_and_differ_in_period() -> None:
    tokens, period = (np.asarray(x) for x in repeated(jax.random.key(0), 64))
    assert tokens.shape == (64, LENGTH) and tokens.min() >= 0 and tokens.max() < TOKENS
    assert period.min() == LENGTH // 4 and period.max() == HALF
    for row, (n,) in zip(tokens, period):
        assert len(set(row[:n])) == n
        np.testing.assert_array_equal(row[n:], row[:-n])


def test_corrupt_sequences_differ_in_the_first_half_everywhere() -> None:
    clean, corrupt = (np.asarray(x) for x in clean_and_corrupt(jax.random.key(0), 64))
    np.testing.assert_array_equal(clean[:, :HALF], clean[:, HALF:])
    np.testing.assert_array_equal(clean[:, HALF:], corrupt[:, HALF:])
    assert (clean[:, :HALF] != corrupt[:, :HALF]).all()
    assert all(len(set(row[:HALF])) == HALF for row in corrupt)
