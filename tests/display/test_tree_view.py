"""The tree of results in a notebook."""

from __future__ import annotations

import io
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console
from tests.notebook_shell import notebook

import sonde
from sonde._array_text import short_place
from sonde.display.tree_view import Leaf, tree_html
from sonde.tools import compare, summarize

X = jnp.arange(6.0).reshape(2, 3)


def program(layers, *, broken=-1):
    def run(x):
        for i in range(layers):
            with sonde.scope(f"decoder/blocks/{i}/self_attention"):
                x = sonde.sow(jnp.log(-x - 1) if i == broken else x + 1, "normalized_scores")
        return sonde.sow(x.sum(), "end")

    return run


def test_the_tree_keeps_order_and_whole_paths():
    text = sonde.capture(program(3))(X)[1]._repr_html_()
    paths = [re.sub("<[^>]*>", "", code) for code in re.findall(r"<code.*?</code>", text)]
    assert paths == [f"decoder/blocks/{i}/self_attention/normalized_scores" for i in range(3)] + ["end"]
    assert "float32[2,3]" in text and "1 to 6" in text and "<rect" in text and "data:image/png" in text
    assert "<details open>" in text and "not finite" not in text


def test_what_is_wrong_is_seen_also_if_it_is_folded():
    text = sonde.capture(program(60, broken=50))(X)[1]._repr_html_()
    # The outer groups are open as long as few lines are seen; 60 layers are too many.
    assert re.findall(r"<details open><summary[^>]*>([\w/]*)", text) == ["decoder/"]
    for group in ("decoder/", "decoder/blocks/"):
        summary = re.search(rf"<summary[^>]*>{group} .*?</summary>", text)[0]
        assert "not finite at 10" in summary
    assert "6 NaN" in text


def test_the_way_to_the_first_broken_line_is_open():
    leaves = [
        Leaf(f"blocks/{i}/mlp/{name}", ["1"], is_broken=i == 17 and name == "out")
        for i in range(30)
        for name in ("in", "out")
    ]
    opened = re.findall(r"<details open><summary[^>]*>([\w/]*)", tree_html("records", leaves))
    assert {"blocks/", "blocks/17/", "blocks/17/mlp/"} <= set(opened) and "blocks/29/" not in opened


def test_sites_have_a_tree():
    text = sonde.sites(program(3))(X)._repr_html_()
    assert "4 sites, 76 B if captured" in text and "decoder/blocks/" in text


def test_a_value_and_its_gradient_are_one_line_of_the_sites():
    text = sonde.sites(jax.grad(lambda x: program(2)(x)), grads=True)(X)._repr_html_()
    lines = [re.sub("<[^>]*>", " ", line) for line in re.findall(r"<code.*?</div>", text)]
    assert [line.split()[-3:] for line in lines[:2]] == [["24", "B", short_place(f"{__file__}:27")]] * 2
    assert all(line.count("24 B") == 2 for line in lines[:2]) and "gradient" in text and "axes" not in text


def test_a_record_is_the_array_that_it_holds_or_says_what_to_ask_for():
    _, records = sonde.capture(lambda x: sonde.sow(x + 1, "h"))(X)
    np.testing.assert_array_equal(np.asarray(records["h"]), X + 1)
    assert np.asarray(records["h"], dtype=np.float64).dtype == np.float64
    _, records = sonde.capture(lambda x: [sonde.sow(x, "h"), sonde.sow(x, "h"), sonde.sow((x, x), "pair")])(X)
    with pytest.raises(TypeError, match=r"'h' is not one array: it has 2 calls; .*record.values\[0\]"):
        np.asarray(records["h"])
    with pytest.raises(TypeError, match=r"'pair' is not one array: its value has 2; ask for record.value"):
        np.asarray(records["pair"])
    assert records._ipython_key_completions_() == ["h", "pair"]


def test_records_in_a_traced_function_have_no_numbers_and_look_fine():
    seen = []
    jax.jit(lambda x: seen.append(sonde.capture(program(2))(x)[1]._repr_html_()))(X)
    assert "decoder/blocks/" in seen[0] and "float32[2,3]" in seen[0]


def test_a_line_of_a_cell_has_the_number_of_the_cell():
    with notebook() as shell:
        shell.run("import jax.numpy as jnp\nimport sonde")
        shell.run("def f(x):\n    return sonde.sow(x, 'h')")
        shell.run("sites = sonde.sites(f)(jnp.ones(3))\n_, records = sonde.capture(f)(jnp.ones(3))")
        for name in ("sites", "records"):
            assert "In[2]:2" in shell.namespace[name]._repr_html_()
        assert "In[2]:2" in repr(shell.namespace["sites"])


def test_records_of_many_layers_are_a_line_for_all_that_are_alike():
    def run(x):
        x = sonde.sow(x, "start")
        for i in range(70):
            if i != 3:
                with sonde.scope(f"decoder/blocks/{i}"):
                    x = sonde.sow(x + 1, "out")
                    sonde.sow(x.sum() if i < 35 else x, "other")
        return sonde.sow(x, "end")

    records = sonde.capture(run)(X)[1]
    lines = repr(records).splitlines()
    assert lines == [
        "Records(  # 140 sites, 2.7 KB",
        "  Record('start', values=float32[2,3]),",
        "  69 x Record('decoder/blocks/{0..2,4..69}/out', values=float32[2,3]),",
        "  34 x Record('decoder/blocks/{0..2,4..34}/other', values=float32[]),",
        "  35 x Record('decoder/blocks/{35..69}/other', values=float32[2,3]),",
        "  Record('end', values=float32[2,3]),",
        ")",
    ]
    assert len(sonde.capture(run, "decoder/blocks/{35..69}/other")(X)[1]) == 35  # what is printed is a pattern


def test_a_comparison_in_a_notebook_shows_what_differs_also_if_it_is_folded():
    text = compare(program(60), program(60, broken=50))(X)._repr_html_()
    summary = re.search(r"<summary[^>]*>decoder/ .*?</summary>", text)[0]
    assert "differs at 10" in summary
    assert re.search(r">allowed</span>", text) and "differs</span>" in text


def test_statistics_in_a_notebook_show_what_is_wrong_also_if_it_is_folded():
    text = summarize(program(60, broken=50))(X)._repr_html_()
    assert "not finite at 10" in re.search(r"<summary[^>]*>decoder/ .*?</summary>", text)[0]
    assert "6 not finite</span>" in text and ">norm</span>" in text and "background:rgba(224,80,60," in text
    text = summarize(lambda x: sonde.sow(x.at[:, 1].set(0), "h"))(X + 1)._repr_html_()
    assert "dead or zero at 1" in text and "1 of 3 units dead" in text


def test_statistics_of_a_long_loop_show_iterations_that_are_wrong():
    def run(x):
        return jax.lax.scan(lambda c, i: (c, sonde.sow(c / (i - 20.0), "h")), x, jnp.arange(40.0))

    console = Console(width=120, file=io.StringIO(), record=True)
    summary = summarize(run)(X + 1)
    console.print(summary)
    rows = [line.split()[1] for line in console.export_text().splitlines() if line.startswith("h ")]
    assert rows == ["0", "1", "2", "20", "37", "38", "39"]
    assert "6 not finite" in summary._repr_html_()


def test_a_record_shows_its_calls_and_pictures():
    record = sonde.capture(program(1))(X)[1]["decoder/blocks/0/self_attention/normalized_scores"]
    assert "data:image/png" in record._repr_html_()
    console = Console(width=50, file=io.StringIO(), record=True)
    console.print(record)
    text = console.export_text()
    assert record.path in text and "float32[2,3]" in text and "1 to 6" in text
