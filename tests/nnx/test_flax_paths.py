"""The import paths of Flax's own files."""

from __future__ import annotations

import importlib

import pytest

from sonde import nnx
from sonde.nnx._flax_paths import PATHS


@pytest.mark.parametrize("path", PATHS)
def test_paths_of_flax_can_be_imported(path):
    module = importlib.import_module(f"sonde.nnx.{path}")
    with pytest.raises(AttributeError, match=f"module 'sonde.nnx.{path}' has no attribute 'nonsense'"):
        _ = module.nonsense


def test_what_the_paths_hand_on():
    from sonde.nnx.nn import initializers
    from sonde.nnx.nn.attention import dot_product_attention_weights
    from sonde.nnx.nn.linear import Conv, default_kernel_init
    from sonde.nnx.transforms.compilation import StateSharding, jit
    from sonde.nnx.variablelib import Param, use_eager_sharding

    from sonde.nnx.graph import Key, split
    from sonde.nnx.module import GraphDef, Module, first_from

    assert (split, GraphDef, Module, Conv, jit, StateSharding) == (
        nnx.split,
        nnx.GraphDef,
        nnx.Module,
        nnx.Conv,
        nnx.jit,
        nnx.StateSharding,
    )
    assert (Param, use_eager_sharding, initializers.ones) == (nnx.Param, nnx.use_eager_sharding, nnx.initializers.ones)
    assert callable(dot_product_attention_weights) and callable(default_kernel_init) and Key
    assert first_from(None, 3, error_msg="none") == 3
    with pytest.raises(ValueError, match="none"):
        first_from(None, error_msg="none")
