"""The decorator for functions that will be removed."""

import pytest

from sonde import nnx


def test_a_call_warns():
    @nnx.deprecations.deprecated
    def old(x, *, y):
        return x + y

    with pytest.warns(DeprecationWarning, match="old is deprecated"):
        assert old(1, y=2) == 3
    assert old.__name__ == "old"
