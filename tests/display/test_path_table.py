"""Tables of results: no path is cut in narrow terminals, columns stay columns, long tables are folded."""

from __future__ import annotations

import io

import jax.numpy as jnp
import pytest
from rich.console import Console
from rich.table import Table

import sonde
from sonde.core import glob_matches
from sonde.display import WholePaths
from sonde.display.path_table import family_of, family_path, table_html
from sonde.tools import compare, summarize

X = jnp.arange(6.0).reshape(2, 3)


def program(layers):
    def run(x):
        for i in range(layers):
            with sonde.scope(f"decoder/blocks/{i}/self_attention"):
                x = sonde.sow(x + 1, "normalized_scores")
        return sonde.sow(x.sum(), "end")

    return run


def printed(shown, width):
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(shown)
    return console.export_text()


RESULTS = {
    "records": lambda: sonde.capture(program(3))(X)[1],
    "sites": lambda: sonde.sites(program(3))(X),
    "summary": lambda: summarize(program(3))(X),
    "comparison": lambda: compare(program(3), program(3))(X),
}


@pytest.mark.parametrize("width", [30, 50, 80, 200])
@pytest.mark.parametrize("name", RESULTS)
def test_paths_stay_whole_in_narrow_terminals(name, width):
    text = printed(RESULTS[name](), width)
    for i in range(3):
        path = f"decoder/blocks/{i}/self_attention/normalized_scores"
        assert path in (text if width >= len(path) else text.replace("\n", ""))
    assert "…" not in text


def a_table(rows, *, headers=("site", "kind", "mean", "bars", "bad")):
    table = Table(*headers, title="many [b]layers")
    for path, *cells, style in rows:
        table.add_row(path, *cells, style=style)
    return table


def test_numbers_below_a_path_stand_in_columns():
    rows = [("blocks/0/a_long_name", "f32", "1.5", "", "", ""), ("blocks/10/b", "bf16", "-20.25", "", "3", "red")]
    assert printed(WholePaths(a_table(rows)), 25).splitlines() == [
        "many [b]layers",
        "site",
        "    kind    mean  bad",
        "blocks/0/a_long_name",
        "    f32      1.5",
        "blocks/10/b",
        "    bf16  -20.25    3",
    ]
    assert printed(WholePaths(a_table(rows)), 80).splitlines()[1:] == [
        "site                  kind    mean  bad",
        "blocks/0/a_long_name  f32      1.5",
        "blocks/10/b           bf16  -20.25    3",
    ]


def test_layers_that_are_alike_share_a_row_and_what_is_wrong_stays_apart():
    rows = [("in", "f32", "0", "", "", "")]
    for i in range(40):
        mean = "nan" if i == 7 else f"{i / 10:.3g}"
        rows.append((f"blocks/{i}/out", "f32", mean, "▁▂"[i % 2], "12" * (i == 7), "red" * (i == 7)))
        rows.append((f"blocks/{i}/mlp", "f32" if i else "bf16", f"{-i} to {i}", "", "", ""))
    lines = printed(WholePaths(a_table(rows)), 100).splitlines()
    assert [" ".join(line.split()) for line in lines[2:]] == [
        "site kind mean bars bad",
        "in f32 0",
        "blocks/{0..6,8..39}/out f32 0 to 3.9",
        "blocks/0/mlp bf16 0 to 0",
        "blocks/{1..39}/mlp f32 -39 to 39",
        "blocks/7/out f32 nan ▂ 12",
    ]
    assert lines[0] == "many [b]layers" and "share a row" in lines[1]


def test_rows_that_continue_the_one_above_stay_below_it():
    rows = [(f"blocks/{i}/out" if j == 0 else "", "f32", f"{i + j}", "", "", "") for i in range(40) for j in range(2)]
    lines = printed(WholePaths(a_table(rows)), 100).splitlines()[2:]
    assert [line.split()[-1] for line in lines] == [f"{i + j}" for i in range(40) for j in range(2)]


def test_the_path_of_a_family_is_a_pattern_of_its_layers():
    assert family_of("blocks/3/mlp/4") == ("blocks/*/mlp/4", "3") and family_of("loss") == ("loss", "")
    path = family_path("blocks/*/mlp/4", ["0", "1", "2", "5", "7", "8"])
    assert path == "blocks/{0..2,5,7..8}/mlp/4"
    assert [i for i in range(10) if glob_matches(path, f"blocks/{i}/mlp/4")] == [0, 1, 2, 5, 7, 8]
    assert family_path("blocks/*/out", ["3", "3"]) == "blocks/3/out" and family_path("loss", ["", ""]) == "loss"


def test_a_table_in_a_notebook_has_whole_cells_and_is_folded():
    html = table_html(a_table([(f"blocks/{i}/<b>", "f32", "1", "", "", "bold red") for i in range(50)]))
    assert "10 more rows" in html and "blocks/49/&lt;b&gt;" in html and "many [b]layers" in html
    assert "text-align:right" in html and "font-weight: bold" in html and ">bad<" not in html
