"""What a type checker says about programs of users: nothing about correct ones, and where the mistake is in others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PROGRAMS = HERE / "type_checking"


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, str]]:
    """The messages of the type checker, by file and line. One run for both files: most of its time is reading JAX."""
    settings = {
        "include": [str(PROGRAMS)],
        "extraPaths": [str(HERE.parent / "src")],
        "pythonVersion": "3.11",
        "typeCheckingMode": "standard",
    }
    project = tmp_path_factory.mktemp("project") / "pyrightconfig.json"
    project.write_text(json.dumps(settings))
    checker = Path(sys.executable).parent / "basedpyright"
    command = [checker, "--outputjson", "--pythonpath", sys.executable, "--project", project]
    report = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
    assert report["summary"]["filesAnalyzed"] == 2
    found: dict[str, dict[int, str]] = {"correct.py": {}, "mistakes.py": {}}
    for message in report["generalDiagnostics"]:
        if message["severity"] == "error":
            line = message["range"]["start"]["line"] + 1
            found[Path(message["file"]).name][line] = message["message"]
    return found


def test_a_correct_program_has_no_error(errors: dict[str, dict[int, str]]) -> None:
    assert errors["correct.py"] == {}


def test_every_mistake_is_an_error_and_nothing_else_is(errors: dict[str, dict[int, str]]) -> None:
    lines = (PROGRAMS / "mistakes.py").read_text().splitlines()
    mistakes = {number: line for number, line in enumerate(lines, 1) if line.endswith("# mistake")}
    assert len(mistakes) > 30
    assert {number: line for number, line in mistakes.items() if number not in errors["mistakes.py"]} == {}
    assert {number: text for number, text in errors["mistakes.py"].items() if number not in mistakes} == {}
