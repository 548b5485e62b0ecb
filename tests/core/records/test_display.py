"""How records look: as text, as a table, and in a notebook."""

import io

import jax
import jax.numpy as jnp
import pytest
import treescope
from rich.console import Console

import sonde
from sonde import sow

X = jnp.arange(3.0)


def f(x):
    with sonde.scope("block"):
        h = sow(jnp.sin(x), "h")
    return sow(sow(h * 2, "twice") + 1, "twice").sum()


def records(**options):
    return sonde.capture(jax.value_and_grad(f), grads=True, **options)(X)[1]


def test_text():
    assert repr(records()) == (
        "Records(\n"
        "  Record('block/h', values=float32[3], grads=float32[3]),\n"
        "  Record('twice', values=float32[3] x2, grads=float32[3] x2),\n"
        ")"
    )
    assert repr(sonde.capture(lambda x: x)(X)[1]).startswith("Records({})  # nothing is marked in f; ")


def test_table():
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(records())
    text = console.export_text()
    assert "2 sites" in text and "block/h" in text and "test_display.py:" in text


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # treescope's own, on some versions of JAX
def test_notebook():
    assert "'block/h'" in treescope.render_to_text(records())


def test_a_record_in_a_notebook():
    def f(x):
        for _ in range(2):
            x = sonde.sow(x * 2, "h")
        return x.sum()

    _, records = sonde.capture(jax.grad(f), grads=True)(jnp.ones(3))
    page = records["h"]._repr_html_()
    assert "h" in page and page.count("float32[3]") == 4  # two values and two gradients
    assert repr(records["h"]) == "Record('h', values=float32[3] x2, grads=float32[3] x2)"
