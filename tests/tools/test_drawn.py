"""Results draw themselves: in a notebook, with matplotlib, as a table of pandas."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from sonde import sow
from sonde.tools import (
    attention_heads,
    attribute,
    attribute_edges,
    compare,
    logit_lens,
    patch_paths,
    patch_sweep,
    summarize,
)

X = jnp.arange(6.0).reshape(3, 2)


def f(x: Any) -> Any:
    h = sow(x * 2, "h<b>")
    return jnp.sum(sow(h + x, "end"))


RESULTS = {
    "sweep": lambda: patch_sweep(f, X, -X, "*", lambda y: y),
    "lens": lambda: logit_lens(f, readout=lambda h: h, k=1)(X),
    "attribution": lambda: attribute(f)(X),
    "edges": lambda: attribute_edges(f, "h*", "end", baseline=-X)(X),
    "paths": lambda: patch_paths(f, X, -X, "h*", "end", lambda y: y),
    "heads": lambda: attention_heads(lambda t: sow(jnp.ones((1, 1, 3, 3)) / 3, "w"), "w")(jnp.array([[1, 2, 1]])),
    "comparison": lambda: compare(f, f)(X),
    "summary": lambda: summarize(f)(X),
}


class Cells(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.titles: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.titles += [value for name, value in attrs if name == "title"]


@pytest.mark.parametrize("name", RESULTS)
def test_every_result_draws_itself(name: str) -> None:
    found = RESULTS[name]()
    frame = found.to_dataframe()
    text = found._repr_html_()
    cells = Cells()
    cells.feed(text)
    assert cells.tags.count("td") == frame.size == len(cells.titles)
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
    with pytest.raises(ImportError, match=r"pandas.*sonde\[plots\]"):
        sweep.to_dataframe()
