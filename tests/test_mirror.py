"""Every module of `core` and `nnx` has a test file of its name, at the same place."""

from pathlib import Path

import sonde

SOURCE = Path(sonde.__file__).parent
TESTS = Path(__file__).parent


def test_every_module_has_its_test_file():
    missing = []
    for folder in ("core", "display", "nnx"):
        for module in sorted((SOURCE / folder).rglob("*.py")):
            place = module.relative_to(SOURCE)
            wanted = TESTS / place.parent / f"test_{place.stem}.py"
            if place.name != "__init__.py" and not (wanted.exists() and "def test_" in wanted.read_text()):
                missing.append(f"{place.as_posix()}: tests/{wanted.relative_to(TESTS).as_posix()}")
    assert not missing, "modules without tests in a file of their name:\n  " + "\n  ".join(missing)
