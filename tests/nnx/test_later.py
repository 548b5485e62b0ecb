"""Names of `sonde.nnx` that are loaded when they are first used."""

from __future__ import annotations

import ast
from pathlib import Path

from sonde import nnx
from sonde.nnx._later import LATER


def test_names_that_are_loaded_later_are_those_that_type_checkers_see():
    """A new name of a layer or a transform goes into `_later.py`, the `TYPE_CHECKING` block and `__all__`."""
    tree = ast.parse(Path(nnx.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    seen = {alias.asname or alias.name for node in imports for alias in node.names}
    assert seen == set(LATER)
    assert set(LATER) <= set(nnx.__all__)
