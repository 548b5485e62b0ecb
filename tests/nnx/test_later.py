"""Names of `sonde.nnx` that are loaded when they are first used."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

from sonde import nnx
from sonde.nnx.later import LATER


def test_names_that_are_loaded_later_are_those_that_type_checkers_see():
    """A new name of a layer or a transform goes into `later.py`, the `TYPE_CHECKING` block and `__all__`."""
    tree = ast.parse(Path(nnx.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    seen = {alias.asname or alias.name for node in imports for alias in node.names}
    assert seen == set(LATER)
    assert set(LATER) <= set(nnx.__all__)


def test_every_name_is_where_the_table_says():
    for name, (module, attribute) in LATER.items():
        found = importlib.import_module(module)
        assert getattr(nnx, name) is (found if attribute is None else getattr(found, attribute))


def test_importing_loads_neither_layers_nor_what_shows_things():
    """Nor optax: both are loaded on the first use of a name that needs them."""
    names = "sonde.nnx.layers.linear sonde.nnx.transforms.jit optax treescope IPython"
    program = f"""
import sys
from sonde import nnx
print(*(name in sys.modules for name in {names!r}.split()))
nnx.Linear
print("sonde.nnx.layers.linear" in sys.modules)
"""
    found = subprocess.check_output([sys.executable, "-c", program], text=True).split()
    assert found == ["False"] * 5 + ["True"]
