"""The notebooks of the documentation run from top to bottom, and are stored without what they print.

The site's build runs them in Jupyter, and fails if a cell does (`make docs`). In the thorough run their cells run in
this process, which needs no Jupyter. One that needs PyTorch is not run by the build: what it prints is in its text, and
is compared where PyTorch is (`make test-transformers`).
"""

from __future__ import annotations

import ast
import json
import linecache
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
LINK = re.compile(r"\[[^\]]*\]\(([^)\s#]+)[^)\s]*\)")


def cells_of(notebook: Path, kind: str) -> list[str]:
    return ["".join(cell["source"]) for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == kind]


def runs_of() -> list[Any]:
    """The notebooks, with the environment in which they run."""
    kinds = {True: pytest.mark.transformers, False: pytest.mark.thorough}
    needs_torch = {path: any("import torch" in cell for cell in cells_of(path, "code")) for path in NOTEBOOKS}
    return [pytest.param(path, marks=kinds[needs], id=path.stem) for path, needs in needs_torch.items()]


def run_cell(source: str, name: str, namespace: dict[str, object]) -> None:
    """Runs a cell; a last line that is an expression is shown, as a notebook would."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), namespace)
    if isinstance(last, ast.Expr):
        shown = eval(compile(ast.Expression(last.value), name, "eval"), namespace)
        as_html = getattr(shown, "_repr_html_", None)
        assert as_html is None or isinstance(as_html(), str)
        assert repr(shown)


@pytest.mark.parametrize("notebook", runs_of())
def test_notebook_runs(notebook: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    module = types.ModuleType(f"notebook_{notebook.stem.replace('-', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    number, printed = 0, ""
    for cell in json.loads(notebook.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            run_cell(source, f"<{notebook.stem}, cell {number}>", vars(module))
            number, printed = number + 1, capsys.readouterr().out
        elif source.startswith("```text"):
            texts = source[8:-4], printed.rstrip()
            # What is left of a difference varies with the machine.
            one, other = (re.sub(r"(agrees?) to [\d.e-]+", r"\1", text) for text in texts)
            assert one == other


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_stored_without_output_and_its_links_lead_somewhere(notebook: Path) -> None:
    for cell in json.loads(notebook.read_text())["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
    text = cells_of(notebook, "markdown")
    assert text[0].startswith("# ")
    for target in LINK.findall("\n".join(text)):
        assert (notebook.parent / target).exists(), target
