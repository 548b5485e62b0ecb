"""The names of `sonde.nnx`: there, listed once in each place that needs them, and under the paths of Flax's files."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

from sonde import nnx
from sonde.nnx._flax_paths import PATHS
from sonde.nnx._later import LATER


def test_names_are_there():
    assert len(set(nnx.__all__)) == len(nnx.__all__)
    for name in nnx.__all__:
        assert getattr(nnx, name) is not None
        assert name in dir(nnx)


def test_names_that_are_loaded_later_are_those_that_type_checkers_see():
    """A new name of a layer or a transform goes into `_later.py`, the `TYPE_CHECKING` block and `__all__`."""
    tree = ast.parse(Path(nnx.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    seen = {alias.asname or alias.name for node in imports for alias in node.names}
    assert seen == set(LATER)
    assert set(LATER) <= set(nnx.__all__)


def test_an_unknown_name_is_named():
    with pytest.raises(AttributeError, match="module 'sonde.nnx' has no attribute 'Lineer'"):
        _ = nnx.Lineer


def test_every_name_of_flax_is_there():
    flax_nnx = importlib.import_module("flax.nnx")
    inner = {"NodeStates", "deprecations", "reprlib", "tracers", "ids"}  # of Flax's own workings
    missing = {n for n in dir(flax_nnx) if not n.startswith("_") and not hasattr(nnx, n)}
    assert missing <= inner


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
