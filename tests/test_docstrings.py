"""The examples in docstrings run: one case for each module that has some."""

from __future__ import annotations

import ast
import doctest
import importlib
import io
from pathlib import Path

import pytest

import sonde

SOURCE = Path(sonde.__file__).parent
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def has_examples(node: ast.AST) -> bool:
    return isinstance(node, DOCUMENTED) and ">>> " in (ast.get_docstring(node) or "")


def module_name(file: Path) -> str:
    parts = file.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# Read, not imported: collecting tests stays quick.
EXAMPLES = {module_name(file): file for file in sorted(SOURCE.rglob("*.py")) if ">>> " in file.read_text()}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_of(name: str) -> None:
    module = importlib.import_module(name)
    found = [test for test in doctest.DocTestFinder(recurse=True).find(module) if test.examples]
    count = sum(map(has_examples, ast.walk(ast.parse(EXAMPLES[name].read_text()))))
    assert len(found) >= count > 0, f"doctest finds {[t.name for t in found]}, the file has {count}"
    report, runner = io.StringIO(), doctest.DocTestRunner(verbose=False)
    for test in found:
        runner.run(test, out=report.write)
    assert not runner.failures, report.getvalue()


@pytest.mark.parametrize(
    "package", ["sonde.core", "sonde.linen", "sonde.nnx", "sonde.ops", "sonde.report", "sonde.tools"]
)
def test_every_part_has_examples(package: str) -> None:
    assert any(name.startswith(package) for name in EXAMPLES)
