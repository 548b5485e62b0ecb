"""The examples in docstrings run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import sonde.nnx.layers
import sonde.nnx.training
import sonde.ops

MODULES = [
    module.name
    for package in (sonde.ops, sonde.nnx.layers, sonde.nnx.training)
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + ".")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_of(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
