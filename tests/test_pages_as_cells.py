"""Every `python` block of README and docs runs as a cell of a notebook, through IPython, and prints what is shown."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from tests.demo.training_once import use_one_training
from tests.notebook_shell import Shell, notebook
from tests.test_documents import NAMES, PAGES, ROOT, agrees, examples_of

import sonde


def printed_by(shell: Shell, cell: str) -> str:
    """What a cell prints, with the end of a traceback."""
    try:
        return shell.run(cell)
    except sonde.errors.SondeError as error:
        where = f"{type(error).__module__}.{type(error).__qualname__}"
        return f"{shell.printed}Traceback (most recent call last):\n  ...\n{where}: {error}\n"


@pytest.mark.every(13)
@pytest.mark.parametrize("name", [n for n, page in zip(NAMES, PAGES) if "```python" in page.read_text()])
def test_page_runs_in_a_notebook(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    use_one_training(monkeypatch)
    page = (ROOT / name).read_text()
    # A place is a line of a cell, and not one of the page.
    place = re.compile(rf"(\S+/)?{re.escape(Path(name).name)}:(\d+|\.\.\.)")
    with notebook("a_page_in_cells", shows_results=False) as shell, np.printoptions():
        for block, shown in examples_of(page):
            got, expected = printed_by(shell, block.text), shown.text if shown else ""
            assert agrees(place.sub("...", expected), got), f"{name}:{block.line} prints\n{got}\nnot\n{expected}"
