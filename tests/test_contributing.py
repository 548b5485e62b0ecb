"""CONTRIBUTING names files, and what happens in them: both must be there."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
FOLDERS = [ROOT / "src/sonde", ROOT / "src/sonde/nnx", ROOT / "src/sonde/core", ROOT]


def found(name: str) -> Path | None:
    return next((folder / name for folder in FOLDERS if (folder / name).is_file()), None)


def test_files_that_are_named_are_there():
    named = set(re.findall(r"[\w/]+/\w+\.py", TEXT))
    assert len(named) > 30
    assert not [name for name in named if found(name) is None]


def test_what_happens_in_a_file_is_defined_in_it():
    steps = re.findall(r"([\w/]+/\w+\.py) +(\w+):", TEXT)
    assert len(steps) > 15
    define = r"^\s*(?:def {0}\(|class {0}\b|{0} = |{0}: )"
    missing = [(f, name) for f, name in steps if not re.search(define.format(name), found(f).read_text(), re.MULTILINE)]
    assert not missing
