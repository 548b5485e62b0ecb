"""Sonde in a real JupyterLab: cells are typed and run in Chromium, and what they show is opened, copied and measured.

Run by `make test-browser`. With `SCREENSHOTS=folder` in the environment, pictures of the displays are written there.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.chromium import chromium, set_size, texts

pytestmark = pytest.mark.browser

TOKEN = "a-token-for-the-test"
WAIT = 180  # seconds; the first cell imports JAX

SETUP = """
import jax
import jax.numpy as jnp
import sonde
from jax import nn
from sonde import tools
from sonde.report import examine

def attention(q, k, v):
    scores = q @ k.T / jnp.sqrt(q.shape[-1])
    weights = nn.softmax(scores)
    return weights @ v

def network(x, w):
    for i in range(3):
        with sonde.scope(f"blocks/{i}"):
            x = sonde.sow(nn.relu(x @ w), "hidden")
            x = sonde.sow(jnp.log(x) if i == 2 else x * 2, "out")
    return x.sum()

x = jax.random.normal(jax.random.key(0), (6, 8))
w = jax.random.normal(jax.random.key(1), (8, 8)).at[:, 3].set(-100.0 * jnp.sign(x[0, 0]))
"""
RECORDS = "_, records = sonde.capture(jax.jit(network))(x, w); records"
INSIDE = "%%time\nsonde.capture(jax.jit(attention), inside=attention)(x, x, x)[1]"


class Lab:
    """A notebook that is open in JupyterLab."""

    def __init__(self, driver: Any, address: str, folder: Path) -> None:
        self.driver, self.address, self.folder = driver, address, folder
        self.cells = 0

    def open(self, name: str, *, theme: str = "JupyterLab Light") -> None:
        """Opens a new, empty notebook."""
        self.set("apputils-extension:themes", {"theme": theme, "adaptive-theme": False})
        empty = {"cell_type": "code", "metadata": {}, "source": "", "outputs": [], "execution_count": None}
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        notebook = {"cells": [empty], "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 4}
        (self.folder / name).write_text(json.dumps(notebook))
        self.set("apputils-extension:notification", {"fetchNews": "false", "checkForUpdates": False})
        self.driver.get(f"{self.address}/lab/tree/{name}?token={TOKEN}&reset")
        self.cells = 0
        self.until(lambda: self.all(".jp-Notebook .jp-CodeCell .cm-content"), "the notebook")
        self.until(lambda: self.js("return !document.querySelector('#jupyterlab-splash')"), "the end of the splash")
        # The kernel is ready when JupyterLab says that it is idle.
        self.until(lambda: self.all("[data-status='idle']"), "an idle kernel")
        if any(side.is_displayed() for side in self.all("#jp-left-stack")):
            from selenium.webdriver.common.keys import Keys

            self.keys(Keys.CONTROL, "b")  # the list of files is not needed

    def set(self, plugin: str, settings: dict[str, Any]) -> None:
        """Changes settings of JupyterLab."""
        data = json.dumps({"raw": json.dumps(settings)}).encode()
        url = f"{self.address}/lab/api/settings/@jupyterlab/{plugin}?token={TOKEN}"
        headers = {"Authorization": f"token {TOKEN}", "Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(url, data, headers, method="PUT"), timeout=30) as answer:
            assert answer.status in (200, 204)

    def js(self, code: str, *arguments: Any) -> Any:
        return self.driver.execute_script(code, *arguments)

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements("css selector", selector)

    def until(self, condition: Any, what: str) -> None:
        deadline = time.monotonic() + WAIT
        while not condition():
            assert time.monotonic() < deadline, f"waited for {what} in vain"
            time.sleep(0.1)

    def keys(self, *keys: str) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        actions = ActionChains(self.driver)
        *held, last = keys
        for key in held:
            actions.key_down(key)
        actions.send_keys(last)
        for key in held:
            actions.key_up(key)
        actions.perform()

    def editor(self, number: int) -> Any:
        return self.all(".jp-Notebook .jp-CodeCell")[number].find_element("css selector", ".cm-content")

    def focus(self, number: int) -> bool:
        """Clicks into the editor of a cell; whether it could be: JupyterLab may still be building it."""
        from selenium.common.exceptions import WebDriverException

        try:
            editor = self.editor(number)
            self.js("arguments[0].scrollIntoView({block: 'center'})", editor)
            editor.click()
            return self.js("return arguments[0].contains(document.activeElement)", editor)
        except WebDriverException:
            return False

    def run(self, code: str, *, typed: bool = False) -> Any:
        """Runs code in the last cell, which must not fail; returns the element of the cell."""
        from selenium.webdriver.common.keys import Keys

        number = self.cells
        self.until(lambda: len(self.all(".jp-Notebook .jp-CodeCell")) > number, "a new cell")
        self.until(lambda: self.focus(number), f"the editor of cell {number}")
        if typed:
            self.keys(code)
        else:  # as if pasted
            self.driver.execute_cdp_cmd("Input.insertText", {"text": code.strip()})
        self.keys(Keys.SHIFT, Keys.ENTER)
        self.cells += 1
        cell = self.all(".jp-Notebook .jp-CodeCell")[number]
        prompt = f"[{self.cells}]:"
        submitted = time.monotonic()

        def has_ended() -> bool:
            nonlocal submitted
            text = cell.find_element("css selector", ".jp-InputPrompt").text
            if text == "[ ]:" and time.monotonic() - submitted > 5 and self.focus(number):
                # JupyterLab drops a cell that is run before its kernel is connected.
                self.keys(Keys.CONTROL, Keys.ENTER)
                submitted = time.monotonic()
            return text == prompt

        self.until(has_ended, f"cell {prompt}\n{code}")
        errors = cell.find_elements("css selector", "[data-mime-type='application/vnd.jupyter.stderr']")
        assert not errors, errors[0].text
        return cell

    def picture(self, element: Any, name: str) -> None:
        """A screenshot of an output, if they are wanted."""
        if folder := os.environ.get("SCREENSHOTS"):
            self.js("arguments[0].scrollIntoView({block: 'start'})", element)
            time.sleep(0.3)
            self.driver.save_screenshot(str(Path(folder) / f"{name}.png"))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("lab")
    notebooks = folder / "notebooks"
    notebooks.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    places = {f"JUPYTER_{kind}_DIR": str(folder / kind) for kind in ("CONFIG", "RUNTIME")}
    places |= {"JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"), "IPYTHONDIR": str(folder / "ipython")}
    options = ["--no-browser", "--allow-root", f"--ServerApp.root_dir={notebooks}", f"--ServerApp.port={port}"]
    options += [f"--IdentityProvider.token={TOKEN}"]
    address = f"http://127.0.0.1:{port}"
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *options], env=os.environ | places, stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + WAIT
        while True:
            try:
                urllib.request.urlopen(f"{address}/api?token={TOKEN}", timeout=5).close()
                break
            except OSError:
                assert server.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
                time.sleep(0.3)
        with chromium() as driver:
            set_size(driver, 1360, 1000)
            yield Lab(driver, address, notebooks)
    finally:
        server.terminate()
        server.wait(timeout=60)


@pytest.fixture(scope="module")
def notebook(lab: Lab) -> Lab:
    """A notebook in which the functions are defined."""
    lab.open("light.ipynb")
    lab.run("1 + 1", typed=True)
    lab.run(SETUP)
    return lab


def tree(cell: Any) -> Any:
    """What a cell shows as HTML."""
    return cell.find_element("css selector", ".jp-OutputArea-output .jp-RenderedHTMLCommon, .jp-RenderedHTML")


def test_a_function_of_a_cell_is_looked_into(notebook: Lab) -> None:
    cell = notebook.run(INSIDE)
    text = tree(cell).text
    for path in ("attention/scores", "attention/weights", "attention/return"):
        assert path in text.replace("\n", "")
    assert "Wall time" in cell.text
    notebook.picture(cell, "inside")


def test_the_tree_opens_and_shows_pictures(notebook: Lab) -> None:
    cell = notebook.run(RECORDS)
    shown = tree(cell)
    groups = shown.find_elements("css selector", "details")
    assert len(groups) >= 6
    notebook.picture(cell, "records")
    leaf = next(d for d in groups if d.find_elements("css selector", ":scope > div > figure"))
    image = leaf.find_element("css selector", "img")
    assert not image.is_displayed()
    leaf.find_element("css selector", "summary").click()
    assert image.is_displayed()
    notebook.until(lambda: notebook.js("return arguments[0].naturalWidth", image) >= 4, "the picture")
    assert image.rect["width"] >= 40 and image.rect["height"] >= 40
    notebook.picture(cell, "records-open")


def test_a_path_is_copied_with_one_click(notebook: Lab) -> None:
    from selenium.webdriver.common.keys import Keys

    cell = notebook.run("records")
    code = next(c for c in tree(cell).find_elements("css selector", "code") if c.text.endswith("1/hidden"))
    code.click()
    assert notebook.js("return String(window.getSelection())").strip() == "blocks/1/hidden"
    notebook.keys(Keys.CONTROL, "c")
    editor = notebook.editor(notebook.cells)
    notebook.until(lambda: notebook.focus(notebook.cells), "the editor of the last cell")
    notebook.keys(Keys.CONTROL, "v")
    notebook.until(lambda: editor.text == "blocks/1/hidden", "the pasted path")
    notebook.keys(Keys.CONTROL, "a")
    notebook.keys(Keys.DELETE)


def luminance(notebook: Lab, color: str) -> float:
    """How bright a color of CSS is, from 0 to 1."""
    parts = notebook.js(
        "const c = document.createElement('canvas').getContext('2d'); c.fillStyle = arguments[0];"
        "c.fillRect(0, 0, 1, 1); return Array.from(c.getImageData(0, 0, 1, 1).data)",
        color,
    )
    linear = [(p / 255 / 12.92) if p / 255 <= 0.04045 else ((p / 255 + 0.055) / 1.055) ** 2.4 for p in parts[:3]]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(notebook: Lab, first: str, second: str) -> float:
    low, high = sorted([luminance(notebook, first), luminance(notebook, second)])
    return (high + 0.05) / (low + 0.05)


BACKGROUND = """
for (let e = arguments[0]; e; e = e.parentElement) {
  const color = getComputedStyle(e).backgroundColor;
  const alpha = /rgba\\(.*, ([\\d.]+)\\)/.exec(color);
  if (color !== 'transparent' && (!alpha || alpha[1] > 0.5)) return color;  // a tint shows what is behind it
}
return 'white';
"""


def check_alarm(notebook: Lab, cell: Any) -> None:
    """What is not finite has a color that stands out, opaque, and a text that can be read."""
    alarms = [
        e
        for e in tree(cell).find_elements("css selector", "span")
        if e.is_displayed()
        and ("not finite" in e.text or "Inf" in e.text)
        and e.get_attribute("style")
        and "c8102e" in notebook.js("return arguments[0].getAttribute('style')", e)
    ]
    assert alarms, tree(cell).text
    for alarm in alarms:
        color, background = (alarm.value_of_css_property(p) for p in ("color", "background-color"))
        assert contrast(notebook, color, background) > 4.5
        around = notebook.js(BACKGROUND, notebook.js("return arguments[0].parentElement", alarm))
        assert contrast(notebook, background, around) > 2
        opacity = notebook.js(
            "let o = 1; for (let e = arguments[0]; e; e = e.parentElement) o *= getComputedStyle(e).opacity; return o",
            alarm,
        )
        assert opacity == 1


def test_what_is_not_finite_stands_out(notebook: Lab) -> None:
    check_alarm(notebook, notebook.run("records"))


@pytest.mark.parametrize("width", [1360, 400])
def test_nothing_is_cut_off(notebook: Lab, width: int) -> None:
    """What is wider than the page can be scrolled to."""
    cell = notebook.run("tools.summarize(jax.grad(network), grads=True)(x, w)")
    set_size(notebook.driver, width, 900)
    try:
        notebook.picture(cell, f"summary-{width}")
        wide = notebook.js(
            """
            const area = arguments[0].getBoundingClientRect();
            return Array.from(arguments[0].querySelectorAll('td, code, summary')).filter(e => {
              if (!e.getClientRects().length || e.getBoundingClientRect().right <= area.right + 1) return false;
              for (let p = e.parentElement; p; p = p.parentElement) {
                if (/auto|scroll/.test(getComputedStyle(p).overflowX) && p.scrollWidth > p.clientWidth) return false;
              }
              return true;
            }).map(e => e.textContent)
            """,
            cell.find_element("css selector", ".jp-OutputArea"),
        )
        assert wide == []
    finally:
        set_size(notebook.driver, 1360, 1000)


def test_a_report_is_its_page(notebook: Lab) -> None:
    cell = notebook.run("examine(network)(x, w)")
    notebook.picture(cell, "report")
    frame = cell.find_element("css selector", "iframe")
    notebook.driver.switch_to.frame(frame)
    try:
        notebook.until(lambda: "not finite" in notebook.driver.find_element("css selector", "body").text, "the page")
        assert notebook.driver.find_elements("css selector", "#tree, #flow")
        assert "In[2]:1" in notebook.driver.find_element("css selector", "body").text  # the cell, not a file
    finally:
        notebook.driver.switch_to.default_content()


def test_a_view_is_a_widget_that_asks_the_kernel(notebook: Lab) -> None:
    """A site is clicked and changed in the frame, and the kernel answers; other cells run as before."""

    def shown(selector: str) -> list[str]:
        return texts(notebook.driver, selector)

    cell = notebook.run("view = sonde.view(network, x, w); view")
    notebook.until(lambda: cell.find_elements("css selector", "iframe[title='sonde']"), "the widget")
    (frame,) = cell.find_elements("css selector", "iframe[title='sonde']")
    notebook.js("arguments[0].scrollIntoView({block: 'start'})", frame)
    notebook.driver.switch_to.frame(frame)
    try:
        notebook.until(lambda: shown("#site-title") == ["blocks/0/hidden"], "the first site")
        notebook.until(lambda: "arrays" in shown("#status")[0], "the curves")
        site = next(e for e in notebook.all("[role=treeitem]") if e.get_attribute("aria-label") == "blocks/1/out")
        site.find_element("css selector", ".row").click()
        notebook.until(lambda: shown("#site-title") == ["blocks/1/out"], "the site that was clicked")
        zero = next(e for e in notebook.all("#view button") if e.text == "Zero")
        notebook.js("arguments[0].scrollIntoView({block: 'center'})", zero)
        zero.click()
        notebook.until(lambda: "1 change" in shown("#changes h2"), "the change")
        later = "[role=treeitem][aria-label='blocks/2/hidden'] .amount"
        notebook.until(lambda: shown(later) == ["100 %"], "how far later sites have moved")
        assert shown("#trouble") == [""]
    finally:
        notebook.driver.switch_to.default_content()
    notebook.picture(cell, "view")
    assert "[1, 2]" in notebook.run("view.close(); [1, 1 + 1]").text


def test_keys_complete(notebook: Lab) -> None:
    from selenium.webdriver.common.keys import Keys

    editor = notebook.editor(notebook.cells)
    notebook.until(lambda: notebook.focus(notebook.cells), "the editor of the last cell")
    notebook.driver.execute_cdp_cmd("Input.insertText", {"text": 'records["blocks/1'})
    notebook.keys(Keys.TAB)
    notebook.until(lambda: any("blocks/1/hidden" in e.text for e in notebook.all(".jp-Completer")), "the completer")
    notebook.keys(Keys.ESCAPE)
    editor.click()
    notebook.keys(Keys.CONTROL, "a")
    notebook.keys(Keys.DELETE)


def test_the_dark_theme(lab: Lab, notebook: Lab) -> None:
    lab.open("dark.ipynb", theme="JupyterLab Dark")
    lab.run(SETUP)
    cell = lab.run(RECORDS)
    check_alarm(lab, cell)
    lab.picture(cell, "records-dark")
    text = tree(cell).find_element("css selector", "code")
    assert contrast(lab, text.value_of_css_property("color"), lab.js(BACKGROUND, text)) > 4.5
