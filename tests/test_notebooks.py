"""The notebooks of the documentation run from top to bottom, and are stored without what they print.

The site's build runs them in Jupyter, and fails if a cell does (`make docs`). In the thorough run their cells run in
this process, which needs no Jupyter.
"""

from __future__ import annotations

import ast
import json
import linecache
import re
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
LINK = re.compile(r"\[[^\]]*\]\(([^)\s#]+)[^)\s]*\)")


def cells_of(notebook: Path, kind: str) -> list[str]:
    return ["".join(cell["source"]) for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == kind]


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


@pytest.mark.thorough
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(notebook: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType(f"notebook_{notebook.stem.replace('-', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for i, source in enumerate(cells_of(notebook, "code")):
        run_cell(source, f"<{notebook.stem}, cell {i}>", vars(module))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_stored_without_output_and_its_links_lead_somewhere(notebook: Path) -> None:
    for cell in json.loads(notebook.read_text())["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
    text = cells_of(notebook, "markdown")
    assert text[0].startswith("# ")
    for target in LINK.findall("\n".join(text)):
        assert (notebook.parent / target).exists(), target
