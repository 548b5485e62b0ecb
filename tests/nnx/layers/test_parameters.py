"""Making the parameters of a layer."""

from __future__ import annotations

import pytest

from sonde import nnx


def test_missing_rngs_is_said():
    with pytest.raises(TypeError, match=r"Linear.__init__\(\) missing 1 required keyword-only argument: 'rngs'"):
        nnx.Linear(3, 4)  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match="Rngs has no stream 'params'"):
        nnx.Linear(3, 4, rngs=nnx.Rngs(dropout=0))
