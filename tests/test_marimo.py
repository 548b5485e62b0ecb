"""Sonde in marimo, as a notebook that is edited and as an app: its cells run, and Chromium shows their results.

Run by `make test-browser`. With `SCREENSHOTS=folder` in the environment, pictures of the displays are written there.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.chromium import chromium, set_size

pytestmark = pytest.mark.browser

WAIT = 180  # seconds; the first cell imports JAX

NOTEBOOK = """
import marimo

app = marimo.App()

@app.cell
def _():
    import jax
    import jax.numpy as jnp
    import sonde
    from jax import nn

    def attention(q, k, v):
        scores = q @ k.T / jnp.sqrt(q.shape[-1])
        weights = nn.softmax(scores)
        return weights @ v

    return attention, jax, sonde

@app.cell
def _(attention, jax, sonde):
    q = jax.random.normal(jax.random.key(0), (4, 8))
    step = jax.jit(jax.grad(lambda q: attention(q, q, q).sum()))
    _, records = sonde.capture(step, inside=attention, grads=True)(q)
    records
    return (q,)

@app.cell
def _(attention, q, sonde):
    broken = lambda x: attention(x * 0 / 0, x, x).sum()
    sonde.first_nonfinite(broken)(q)
    return
"""


@pytest.mark.parametrize("mode", ["run", "edit"])
def test_cells_are_looked_into_and_results_are_shown(tmp_path: Path, mode: str) -> None:
    notebook = tmp_path / "notebook.py"
    notebook.write_text(NOTEBOOK)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    options = [mode, str(notebook), "--headless", "--host", "127.0.0.1", "--port", str(port), "--no-token"]
    settings = {"XDG_CONFIG_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "marimo", *options], env=os.environ | settings, stdout=log, stderr=log, cwd=tmp_path
        )
    try:
        wait_for(lambda: answers(address) or server.poll() is not None, "the server")
        assert server.poll() is None, (tmp_path / "log").read_text()
        with chromium() as driver:
            set_size(driver, 1360, 1600)
            driver.get(address)
            if mode == "edit":
                wait_for(lambda: driver.find_elements("css selector", "[data-testid='run-button']"), "the editor")
                time.sleep(1)  # the page listens to keys soon after it is drawn
                from selenium.webdriver.common.keys import Keys

                driver.find_element("tag name", "body").send_keys(Keys.CONTROL, Keys.SHIFT, "r")
            wait_for(lambda: "the first NaN is made by" in text_of(driver), "the results")
            text = text_of(driver)
            for path in ("attention/scores", "attention/weights", "attention/return"):
                assert path in text
            assert "float32[4,8]" in text and "gradient" in text
            assert "div of float32[4,8], all zeros" in text
            where = "notebook.py:" if mode == "run" else "cell "
            assert where in text and "__marimo__" not in text
            if folder := os.environ.get("SCREENSHOTS"):
                driver.save_screenshot(str(Path(folder) / f"marimo-{mode}.png"))
    finally:
        server.terminate()
        server.wait(timeout=60)


def text_of(driver: Any) -> str:
    return driver.execute_script("return document.body.innerText")


def answers(address: str) -> bool:
    try:
        urllib.request.urlopen(address, timeout=5).close()
    except OSError:
        return False
    return True


def wait_for(condition: Any, what: str) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline, f"waited for {what} in vain"
        time.sleep(0.2)
