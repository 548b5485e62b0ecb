"""Private JAX goes through one door. (The arrows between the layers are checked by import-linter, in `make check`.)"""

import ast
from pathlib import Path

import sonde

ROOT = Path(sonde.__file__).parent
PRIVATE = ("jax._src", "jax.extend", "jax.interpreters")


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield ast.unparse(node)


def test_private_jax_only_in_one_folder():
    found = [
        (str(path.relative_to(ROOT)), name)
        for path in sorted(ROOT.rglob("*.py"))
        if path.parent.name != "_jax"
        for name in imported(path)
        if name.startswith(PRIVATE)
    ]
    assert not found


def test_the_one_door_is_used():
    assert any(name.startswith("jax._src") for name in imported(ROOT / "_jax" / "inner.py"))
