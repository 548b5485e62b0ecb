"""What rich prints, as text and as HTML."""

import pytest
from rich.table import Table

from sonde.display import InNotebook, WholePaths, as_text, in_notebook


def table() -> Table:
    drawn = Table("site", "value", title="a title")
    drawn.add_row("blocks/0/out", "1 < 2")
    return drawn


def test_text_is_as_wide_as_the_terminal_and_has_no_colors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "12")
    narrow = as_text(WholePaths(table()))
    assert "\x1b" not in narrow
    assert narrow.splitlines() == ["a title", "site", "    value", "blocks/0/out", "    1 < 2"]
    monkeypatch.setenv("COLUMNS", "80")
    assert as_text(WholePaths(table())).splitlines()[-1] == "blocks/0/out  1 < 2"


def test_a_notebook_gets_tables_and_texts_as_html() -> None:
    class Result(InNotebook):
        def __rich__(self) -> WholePaths:
            return WholePaths(table())

    assert in_notebook("a < b") == "<pre>a &lt; b</pre>"
    for drawn in (in_notebook(table()), in_notebook(Result()), Result()._repr_html_()):
        assert "<table" in drawn
        assert "1 &lt; 2" in drawn
