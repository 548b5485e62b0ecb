"""The page is one well-formed file, holds what the report holds, and cannot be broken out of."""

import dataclasses
import json
import re
from html.parser import HTMLParser

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.report import pages

import sonde
from sonde.report import HeatMap, Lines, Text, examine
from sonde.report.budget import fitting
from sonde.report.page import page, script_safe
from sonde.report.pictures import Picture
from sonde.report.plain_json import plain

VOID = {"meta", "input", "br", "link", "img"}


class Reader(HTMLParser):
    """Elements, their balance, and the text of scripts, as a browser divides the file."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.elements, self.scripts, self.titles = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append((dict(attrs), []))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1][1].append(data)
        if self.open and self.open[-1] == "title":
            self.titles.append(data)


def read(text):
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert not reader.open
    return reader


def data_of(text):
    (found,) = ["".join(parts) for attrs, parts in read(text).scripts if attrs.get("type") == "application/json"]
    return json.loads(found)


@pytest.fixture(scope="module")
def hostile():
    return pages.hostile()


def test_the_file_holds_what_the_report_holds(tmp_path, hostile):
    path = hostile.write(tmp_path / "report.html")
    assert path == tmp_path / "report.html"
    assert data_of(path.read_text("utf-8")) == hostile.to_json()


def test_hostile_names_are_data_only(hostile):
    text = page(hostile.to_json())
    reader = read(text)
    assert [tag for tag, _ in reader.elements if tag == "script"] == ["script"] * 2
    assert not [tag for tag, _ in reader.elements if tag in ("img", "b", "i")]
    assert reader.titles == [pages.NASTY[0]]
    assert "\u2028" not in text and "\u2029" not in text
    assert "<img" not in text and "<!--" not in text


def test_nothing_is_loaded(hostile):
    text = page(hostile.to_json())
    for tag, attrs in read(text).elements:
        assert tag not in ("link", "iframe", "object", "base")
        assert not set(attrs) & {"src", "srcset", "action"} and attrs.get("href", "#").startswith("#")
    shell = page(pages.empty().to_json())
    addresses = set(re.findall(r"https?://[^\s\"'`]+", shell))
    assert addresses == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|import)\s*\(|@import|url\(", shell)


def test_the_script_never_reads_data_as_markup():
    shell = page(pages.empty().to_json())
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", shell)


def test_only_our_script_may_run(hostile):
    (policy,) = [a["content"] for tag, a in read(page(hostile.to_json())).elements if "http-equiv" in a]
    assert policy.startswith("default-src 'none'") and "script-src 'sha256-" in policy
    assert "unsafe-inline" not in policy.partition("script-src")[2]


@pytest.mark.parametrize("text", ["</script>", "<!--", "\u2028\u2029", "&lt;", "\ud800", "\\u003c/script", "é🙂"])
def test_escaping_round_trips(text):
    escaped = script_safe({text: [text]})
    assert json.loads(escaped) == {text: [text]}
    assert not set("<>&\u2028\u2029") & set(escaped)
    escaped.encode("utf-8")


def test_numbers_that_json_cannot_hold_are_strings():
    assert plain([np.nan, np.inf, -np.inf, np.float32(0.1), np.int64(3), True, None]) == [
        "NaN",
        "Infinity",
        "-Infinity",
        0.1,
        3,
        True,
        None,
    ]


def test_size_of_500_sites():
    report = pages.large()
    assert len(report.paths) == 500
    assert all(site.gradients for site in report.sites)
    assert len(page(report.to_json()).encode()) < 5_000_000


def test_size_of_500_sites_in_loops_with_pictures():
    f = lambda x: jax.lax.scan(lambda c, _: (sonde.sow(c * 0.99, "attn"), None), x, length=300)[0].sum()
    report = examine(jax.grad(f), grads=True)(jnp.ones((2, 8)) / 8)
    (site,) = report.sites
    (one,) = examine(lambda x: sonde.sow(x, "attn"))(jnp.ones((2, 8, 64, 64)) / 64).pictures
    sites = [
        dataclasses.replace(
            site, path=f"blocks/{i}/attn", pictures=(dataclasses.replace(one, path=f"blocks/{i}/attn"),)
        )
        for i in range(500)
    ]
    big = dataclasses.replace(report, sites=tuple(sites))
    assert len(site.values) == len(site.gradients) == 300
    assert len(page(big.to_json()).encode()) < 5_000_000


def test_pictures_stay_within_their_budget(monkeypatch):
    def f(x):
        for i in range(12):
            sonde.sow(jnp.exp(x - 5) / jnp.exp(x - 5).sum(-1, keepdims=True), f"attn{i}/weights")

    report = examine(f)(jnp.ones((2, 8, 64, 64)))
    monkeypatch.setattr("sonde.report.report.PICTURE_BYTES", 100_000)
    pictures = report.to_json()["pictures"]
    assert len(pictures) == 12  # each smaller, none lost
    assert sum(len(p["levels"]) for p in pictures) <= 100_000 * 4 / 3 + 12 * 4


def drawing(kind, *shape):
    return Picture("h", "", kind, 0, (), np.zeros(shape, np.uint8), 0.0, 1.0, shape)


def test_a_matrix_gives_way_to_everything_else_and_order_stays():
    matrix, line, maps = drawing("matrix", 1, 8, 8), drawing("attention", 1, 1, 1, 64), drawing("features", 1, 4, 4, 2)
    assert fitting([matrix, line], 128) == [matrix, line]
    assert fitting([matrix, line], 127) == [line]
    assert fitting([matrix, line], 64) == [line]  # it is not cut: without the matrix it fits
    assert fitting([matrix], 63) == []
    assert fitting([matrix, line, maps, matrix], 64 + 64 + 32) == [matrix, line, maps]
    # A matrix that does not fit leaves its room to a smaller one after it.
    assert fitting([drawing("matrix", 1, 99, 9), line, matrix], 128) == [line, matrix]
    (cut,) = fitting([drawing("attention", 1, 1, 1, 100), matrix], 40)
    assert cut.levels.shape == (1, 1, 1, 32)


def test_what_is_cut_first_is_examples_then_positions_then_heads():
    maps = drawing("attention", 3, 32, 64, 64)
    shapes = []
    for budget in (3 * 32 * 64 * 64 - 1, 32 * 64 * 64 - 1, 32 * 32 * 32 - 1, 16 * 32 * 32 - 1, 8 * 32 * 32 - 1):
        (cut,) = fitting([maps], budget)
        shapes.append(cut.levels.shape)
    assert shapes == [(1, 32, 64, 64), (1, 32, 32, 32), (1, 16, 32, 32), (1, 8, 32, 32), (1, 4, 16, 16)]
    (channels,) = fitting([drawing("features", 1, 8, 8, 12)], 8 * 8 * 12 - 1)
    assert channels.levels.shape == (1, 8, 8, 6)


def test_json_says_what_the_numbers_are():
    report = examine(lambda x: sonde.sow(x, "h"))(jnp.array([1.0, -1.0, 0.0, 4.0]))
    (site,) = report.to_json()["sites"]
    value = site["value"]
    assert (value["mean"], value["min"], value["max"], value["zeros"], value["size"]) == (1, -1, 4, 1, 4)
    edges = report.to_json()["edges"]
    first, counts = value["histogram"]["first"], value["histogram"]["counts"]
    assert sum(counts) == 4
    assert edges[first] == -2 and edges[first + len(counts) - 1] == 4


def test_long_loops_are_thinned_out():
    f = lambda x: jax.lax.scan(lambda c, _: (sonde.sow(c + 1, "h"), None), x, length=1000)[0]
    (site,) = examine(f)(0.0).to_json()["sites"]
    series = site["value"]["series"]
    assert series["of"] == 1000 and len(series["rms"]) == 128
    assert (series["at"][0], series["at"][-1]) == ("iteration 0", "iteration 999")


# -- panels -----------------------------------------------------------------------------------------------------------


def test_panels_check_what_they_are_given():
    with pytest.raises(ValueError, match=r"HeatMap 't' takes values with two axes, got shape \(3,\)"):
        HeatMap(title="t", values=[1, 2, 3])
    with pytest.raises(ValueError, match="HeatMap 't' has 2 rows but 1 labels for them"):
        HeatMap(title="t", values=np.ones((2, 2)), rows=["one"])
    with pytest.raises(ValueError, match="at most 40000 cells, got 90000"):
        HeatMap(title="t", values=np.ones((300, 300)))
    with pytest.raises(ValueError, match=r"Lines 't' takes curves of one length, got \{'a': 2, 'b': 3\}"):
        Lines(title="t", lines={"a": [1, 2], "b": [1, 2, 3]})
    with pytest.raises(ValueError, match="and 1 places"):
        Lines(title="t", lines={"a": [1, 2]}, x=[0])
    with pytest.raises(
        TypeError, match="Report.add takes a HeatMap, Lines, Text or what a tool returned, got 'x' of type str"
    ):
        pages.empty().add("x")


def test_panels_are_on_the_page():
    report = pages.empty().add(Text(title="Hello", text="there"))
    assert report.add(Lines(title="L", lines={"a": np.arange(5000.0)})) is report
    text, lines = report.to_json()["panels"]
    assert text == {"kind": "text", "title": "Hello", "caption": "", "code": "", "text": "there"}
    assert len(lines["x"]) == 2000 and lines["x"][-1] == 4999
    assert [p["kind"] for p in data_of(page(report.to_json()))["panels"]] == ["text", "lines"]


def test_signs_decide_the_colors_of_a_heat_map():
    assert HeatMap(title="t", values=[[1, -1]]).data["signed"]
    assert not HeatMap(title="t", values=[[1, 0]]).data["signed"]
    assert HeatMap(title="t", values=[[1, 0]], signed=True).data["signed"]
