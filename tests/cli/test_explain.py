"""`sonde explain`, and packages that are missing."""

from __future__ import annotations

import sys

import pytest


def test_the_page_of_an_error(sonde) -> None:
    for name in ("InsideError", "insideerror", "inside", "sonde.errors.InsideError"):
        assert sonde.ok("explain", name).startswith("# InsideError")
    assert sonde.ok("explain", "ScopeParamShapeError").startswith("# LinenError")  # one page for the family
    listed = sonde.ok("explain")
    assert "CaptureError " in listed and "NoSuchSiteError " in listed
    assert "no error 'capturerror'. Nearest: CaptureError" in sonde.error("explain", "capturerror")


def test_a_missing_package_is_one_line(sonde, write, monkeypatch: pytest.MonkeyPatch) -> None:
    write("import jax.numpy as jnp, sonde\ndef make(): return (lambda x: sonde.sow(x, 'h')), [jnp.ones((2, 3))]\n")
    monkeypatch.setitem(sys.modules, "tensorstore", None)
    for command in (["harvest", "model:make", "kept"], ["store", "ls", "kept"]):
        error = sonde.error(*command, code=2)
        assert "pip install 'sonde-jax[store]'" in error or "there is no store" in error, error


def test_pages_do_not_say_where_this_machine_has_its_files(sonde, write, folder) -> None:
    write(
        "import jax, jax.numpy as jnp, sonde\ndef f(x): return jax.nn.gelu(sonde.sow(jnp.log(x), 'h'))\n"
        "f.example_inputs = (jnp.arange(3.0) - 1,)\n"
    )
    sonde.ok("report", "model:f", "--inside", "jax.nn", code=1)
    page = (folder / "report.html").read_text()
    assert str(folder) not in page and "site-packages" not in page
    assert "model.py:2" in page and "jax/_src/nn/functions.py:" in page


def test_no_sites_mentions_inside(sonde, write) -> None:
    write("import jax.numpy as jnp\ndef f(x): return x + 1\nf.example_inputs = (jnp.ones(2),)\n")
    for command in ("sites", "report"):
        assert "--inside model or" in sonde.error(command, "model:f")
    assert "f/return" in sonde.ok("sites", "model:f", "--inside", "model:f")
