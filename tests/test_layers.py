"""Private JAX goes through one door. The arrows between the layers are one contract of import-linter: `make check`."""

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


def test_private_jax_goes_through_one_door():
    found = {
        (str(path.relative_to(ROOT)), name)
        for path in sorted(ROOT.rglob("*.py"))
        for name in imported(path)
        if name.startswith(PRIVATE)
    }
    door = {(file, name) for file, name in found if Path(file).parent.name == "_jax"}
    assert not found - door
    assert any(name.startswith("jax._src") for _, name in door)  # or this test would see nothing at all


LIBRARIES = ("distrax", "equinox", "flax", "haiku", "keras", "penzai")


def test_the_engine_knows_no_library() -> None:
    """What serves one library is in its file in `sonde/inside/libraries/`."""
    files = [file for part in ("_jax", "core") for file in sorted((ROOT / part).rglob("*.py"))]
    assert len(files) > 50
    named = [
        (f"{file.relative_to(ROOT)}", name) for file in files for name in LIBRARIES if name in file.read_text().lower()
    ]
    assert not named
