"""Results as pictures and tables: in a notebook, with matplotlib, as a pandas table."""

from __future__ import annotations

import io
import re
import sys
from html.parser import HTMLParser
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import sonde
from sonde import sow, store, tools
from sonde.report import examine
from sonde.tools import (
    HeadScores,
    LensMap,
    LensMaps,
    attention_heads,
    attribute,
    attribute_edges,
    compare,
    first_nonfinite,
    logit_attribution,
    logit_effects,
    logit_lens,
    map_parameters,
    monitor,
    patch_paths,
    patch_sweep,
    probe,
    qk_attribution,
    saved_residuals,
    summarize,
    top_examples,
    trace_back,
)

X = jnp.arange(6.0).reshape(3, 2)


def f(x: Any) -> Any:
    h = sow(x * 2, "h<b>")
    return jnp.sum(sow(h + x, "end"))


def attention_by_hand(x: Any) -> Any:
    read = sow(x + sow(x * 2, "h<b>"), "attn_in")[:, :, None]
    q, k = sow(read, "attn/q"), sow(3 * read, "attn/k")
    return sow(jnp.einsum("bihd,bjhd->bhij", q, k) / 2**0.5, "attn/scores")


RESULTS = {
    "sweep": lambda: patch_sweep(f, "*", metric=lambda y: y)(X, -X),
    "lens": lambda: logit_lens(f, readout=lambda h: h, k=1)(X),
    "attribution": lambda: attribute(f)(X),
    "edges": lambda: attribute_edges(f, "h*", "end", baseline=-X)(X),
    "curve": lambda: RESULTS["edges"]().curve([0, 1]),
    "paths": lambda: patch_paths(f, "h*", "end", metric=lambda y: y)(X, -X),
    "heads": lambda: attention_heads(lambda t: sow(jnp.ones((1, 1, 3, 3)) / 3, "w"), "w")(jnp.array([[1, 2, 1]])),
    "logits": lambda: logit_attribution(
        lambda x: sow(x, "h<b>"), "h*", residual="h<b>", readout=lambda h: h, metric=lambda y: y[0, 0]
    )(X[None]),
    "pairs": lambda: qk_attribution(attention_by_hand, "attn", head=0, query=1, key=0, senders="h*", frozen=())(
        X[None, :2]
    ),
    "reading": lambda: logit_lens(f, readout=lambda h: h, k=1)(X)["end"],
    "row": lambda: summarize(f)(X)[0],
    "comparison": lambda: compare(f, f)(X),
    "summary": lambda: summarize(f)(X),
}


class Cells(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.titles: list[str] = []
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.titles += [value for name, value in attrs if name == "title"]
        self.sources += [value for name, value in attrs if name == "src"]


@pytest.mark.parametrize("name", [name for name in RESULTS if name != "row"])
def test_every_result_draws_itself(name: str) -> None:
    found = RESULTS[name]()
    frame = found.to_dataframe()
    cells = Cells()
    cells.feed(found.html())
    assert cells.tags.count("td") == frame.size == len(cells.titles)
    cells.feed(found._repr_html_())  # a tree, if the rows are sites
    assert not {"script", "link", "img", "b"} & set(cells.tags)  # nothing is loaded, and names are no markup
    figure = found.plot()
    assert len(figure.axes) == 2
    import matplotlib.pyplot as plt

    plt.close(figure)


def test_tokens_name_the_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = RESULTS["sweep"]()
    assert "The &amp; cat" in sweep.html(tokens=["The & cat", "sat", "down"])
    with pytest.raises(ValueError, match="2 tokens for 3 columns"):
        sweep.html(tokens=["a", "b"])
    np.testing.assert_allclose(sweep.to_dataframe().loc["end"], sweep.restored["end"])
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pandas.*sonde-jax\[plots\]"):
        sweep.to_dataframe()


def _end(x: Any) -> Any:
    return jnp.sin(x).sum()


def _monitored() -> Any:
    step = monitor(jax.jit(f), {"*": ["mean"]}, every=1)
    step(X)
    return step


def _top_examples() -> Any:
    return top_examples(lambda tokens: sow(jnp.eye(5)[tokens], "h<b>"), "h<b>", k=2)([jnp.array([[3, 0, 3, 1]])])


IN_NOTEBOOKS = {
    "records": lambda: sonde.capture(f)(X)[1],
    "record": lambda: sonde.capture(f)(X)[1]["end"],
    "sites": lambda: sonde.sites(f)(X),
    "nonfinite": lambda: first_nonfinite(lambda x: sow(x / 0, "h<b>"))(X),
    "monitored": _monitored,
    "finding": lambda: examine(lambda x: sow(x / 0, "h<b>"))(X).findings[0],
    "edge": lambda: RESULTS["edges"]()[0],
    "drift": lambda: compare(f, lambda x: f(x + 1))(X).drifts[0],
    "traced back": lambda: trace_back(lambda x: sow(x * 9, "end"), lambda y: y > 9)(X),
    "statistics": lambda: store.statistics(f, [X]),
    "residuals": lambda: saved_residuals(_end)(X),
    "residual": lambda: saved_residuals(_end)(X)[0],
    "statistics of units": lambda: store.statistics(f, [X])["end"],
    "examples": lambda: _top_examples(),
    "examples of units": lambda: _top_examples()["h<b>"],
    "effects": lambda: logit_effects(jnp.eye(4), lambda h: h @ jnp.arange(20.0).reshape(4, 5), k=2),
    "parameters": lambda: map_parameters({"h<b>": np.arange(6.0)}, {"w": np.arange(6.0)}),
    "maps": lambda: LensMaps({"h<b>": LensMap(np.eye(3), np.zeros(3))}, 2, {"h<b>": np.array([2.0, 1.0])}),
}


def test_no_result_of_the_tools_is_left_out() -> None:
    probed = probe({"h<b>": np.eye(4, dtype=np.float32).repeat(5, 0)}, np.arange(4).repeat(5))
    drawn = [make() for make in (*RESULTS.values(), *IN_NOTEBOOKS.values())] + [probed]
    assert "h&lt;b&gt;" in probed._repr_html_()
    results = {name for name in tools.__all__ if isinstance(getattr(tools, name), type)}
    parts = {"Example", "LensMap", "Interchange"}  # parts of results that are drawn, and a function
    assert results - {type(found).__name__ for found in drawn} == parts
    assert all(hasattr(found, "_repr_html_") for found in drawn)


@pytest.mark.parametrize("name", IN_NOTEBOOKS)
def test_what_is_no_matrix_is_a_tree_a_table_or_text_in_a_notebook(name: str) -> None:
    text = IN_NOTEBOOKS[name]()._repr_html_()
    cells = Cells()
    cells.feed(text)
    assert not {"script", "link", "iframe", "b"} & set(cells.tags) and cells.tags[0] in ("pre", "div")
    assert all(source.startswith("data:image/png;base64,") for source in cells.sources)
    assert "end" in text or "h&lt;b&gt;" in text or name in ("examples of units", "effects")
    assert "background:none" in text and "http" not in text


def test_a_report_in_a_notebook_is_its_page() -> None:
    text = examine(f, title="<b>")(X)._repr_html_()
    cells = Cells()
    cells.feed(text)
    assert cells.tags[0] == "iframe" and not {"script", "b"} & set(cells.tags)  # the page's own are inside the frame
    assert 'sandbox="allow-scripts"' in text and "&lt;script" in text
    assert "details" in cells.tags and "pre" in cells.tags  # as text, where frames are taken out


def test_nothing_is_louder_than_nan() -> None:
    def broken(x: Any) -> Any:
        return sow(jnp.log(x - 2), "h").sum()

    summary = summarize(broken)(X)
    assert "not finite at 1" in summary._repr_html_() and "3 not finite<" in summary._repr_html_()
    assert "not finite in 1" in summary.html() and ">3<" in summary.html()
    fine = summarize(f)(X)._repr_html_()
    assert "not finite" not in fine and ">10<" in fine  # numbers, not only colors
    many = summarize(lambda x: [sow(x, f"h{i}") for i in range(100)])(X).html()
    assert "40 more rows" in many and many.count("<table") == 2


def test_heads_are_grouped_by_what_they_attend_to() -> None:
    shares = np.array([[0.1, 0.9, 0.2]])
    text = HeadScores(("blocks/0/weights",), shares, shares / 2, shares / 4)._repr_html_()
    assert re.findall(r'<th colspan="3"[^>]*>(\w+)</th>', text) == ["previous", "duplicate", "induction"]
    assert re.findall(r"<th style[^>]*>(\d)</th>", text) == ["0", "1", "2"] * 3
    assert "previous: most in blocks/0/weights, head 1 (0.90)" in text


def test_results_on_a_page_have_its_tokens() -> None:
    report = examine(f, tokens=[1, 0, 1], tokenizer=["a", "b"])(X)
    report.add(RESULTS["sweep"]()).add(RESULTS["lens"](), tokenizer=["yes", "no"])
    sweep, lens = report.to_json()["panels"]
    assert report.tokens == ("b", "a", "b") and sweep["columns"] == ["b", "a", "b"]
    assert {text for row in lens["texts"] for text in row} == {"no"}
    heads = patch_sweep(f, "end", metric=lambda y: y, axis=-1)(X, -X)
    assert heads.along == "index along axis -1"
    report = examine(f, tokens=["a", "b"])(X).add(heads).add(RESULTS["sweep"](), tokens=["x", "y", "z"])
    own, given = report.to_json()["panels"]
    assert own["columns"] == ["0", "1"] and own["column_title"] == "index along axis -1"  # no positions, no tokens
    assert given["columns"] == ["x", "y", "z"]
    with pytest.raises(ValueError, match="2 tokens for 3 columns"):
        report.add(RESULTS["sweep"](), tokens=["x", "y"])


def _long(x: Any) -> Any:
    with sonde.scope("decoder/blocks/11/self_attention"):
        h = sow(x * 2, "a_name_of_many_words")
        return jnp.sum(sow(h + x, "another_name_of_words"))


UNITS, LABELS = np.eye(4, dtype=np.float32).repeat(5, 0), np.arange(4).repeat(5)
LONG = {
    "records": lambda: sonde.capture(_long)(X)[1],
    "sites": lambda: sonde.sites(_long)(X),
    "sweep": lambda: patch_sweep(_long, "**", metric=lambda y: y)(X, -X),
    "lens": lambda: logit_lens(_long, readout=lambda h: h, k=1)(X),
    "attribution": lambda: attribute(_long)(X),
    "edges": lambda: attribute_edges(_long, "**/a_*", "**/another_*", baseline=-X)(X),
    "paths": lambda: patch_paths(_long, "**/a_*", "**/another_*", metric=lambda y: y)(X, -X),
    "comparison": lambda: compare(_long, _long)(X),
    "summary": lambda: summarize(_long)(X),
    "statistics": lambda: store.statistics(_long, [X]),
    "probes": lambda: probe({"decoder/blocks/11/self_attention/a_name_of_many_words": UNITS}, LABELS),
}


@pytest.mark.parametrize("name", LONG)
def test_no_table_cuts_a_path_in_a_narrow_terminal(name: str) -> None:
    console = Console(width=52, file=io.StringIO(), record=True)
    console.print(LONG[name]())
    text = console.export_text()
    assert "decoder/blocks/11/self_attention/a_name_of_many_words" in text.replace("\n", "")
    assert "…" not in text
