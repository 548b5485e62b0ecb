"""The names of `sonde.nnx` exist, are listed once wherever they must be, and have the paths of Flax's files."""

from __future__ import annotations

import importlib

import pytest

from sonde import nnx


def test_names_are_there():
    assert len(set(nnx.__all__)) == len(nnx.__all__)
    for name in nnx.__all__:
        assert getattr(nnx, name) is not None
        assert name in dir(nnx)


def test_an_unknown_name_is_named():
    with pytest.raises(AttributeError, match="module 'sonde.nnx' has no attribute 'Lineer'"):
        _ = nnx.Lineer


def test_every_name_of_flax_is_there():
    flax_nnx = importlib.import_module("flax.nnx")
    assert not {n for n in dir(flax_nnx) if not n.startswith("_") and not hasattr(nnx, n)}
