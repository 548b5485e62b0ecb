"""The live page in a real browser: what it shows, what a click does, and that everyone can use it.

Run by `make test-browser`. Where there is no browser these tests fail, and say what is missing.
"""

from __future__ import annotations

import base64
import json
import re
import urllib.parse
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from tests.chromium import chromium, set_size, texts
from tests.report.pages import NASTY
from tests.viewer.conftest import CONFIG, TOKENS

import sonde
from sonde import dictionaries, models, nnx
from sonde.report import examine
from sonde.viewer.open import joined, opened_file, subject_of
from sonde.viewer.operations import OPERATIONS
from sonde.viewer.runs import Runs
from sonde.viewer.server import Served

pytestmark = pytest.mark.browser

WIDE, NARROW = (1360, 900), (400, 800)
SEVERE = ("critical", "serious", "moderate")
OUT = "blocks/1/out"


def hostile(x: Any) -> Any:
    for name in NASTY:
        x = sonde.sow(x * 1.5, name)
    return x.sum()


def raising(x: Any) -> Any:
    sonde.sow(x, "h")
    raise ValueError(NASTY[0])


def large(x: Any) -> Any:
    for i in range(5000 // 4):
        with sonde.scope(f"blocks/{i}"):
            for name in ("a", "b", "c", "d"):
                sonde.sow(x, name)
    return x.sum()


def training_lines(steps: int) -> str:
    rng = np.random.default_rng(0)
    loss = 3 * np.exp(-np.arange(steps) / (steps / 4)) + 0.1 * rng.random(steps)
    layers = [f"blocks/{i}/out/norm" for i in range(6)]
    rows = []
    for step in range(steps):
        row: dict[str, Any] = {"step": step, "loss": round(float(loss[step]), 5)}
        if steps < 1000:
            row |= {name: 1 + 0.01 * i + (50.0 if i == 3 and step > 80 else 0.0) for i, name in enumerate(layers)}
        rows.append(json.dumps(row))
    return "\n".join(rows) + "\n"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder: Path = tmp_path_factory.mktemp("view")
    model = models.from_config(CONFIG, layers="scan")
    other = models.from_config(CONFIG, layers="scan", seed=1)
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 40, (8, 12)))
    store = folder / "store"
    sonde.store.harvest(model, [tokens], store, OUT, keys=lambda t: {"tokens": t}, progress=False)
    autoencoder = dictionaries.Dictionary(16, 24, activation="topk", k=4, rngs=nnx.Rngs(0))
    (folder / "run.jsonl").write_text(training_lines(120))
    (folder / "long.jsonl").write_text(training_lines(100_000))
    (folder / f"{re.sub(r'[^<>=a-z0-9 ]', '', NASTY[0])}.jsonl").write_text(training_lines(20))
    examine(hostile, title="A report")(jnp.ones(2)).write(folder / "report.html")
    here = {OUT: autoencoder}
    programs = {
        "model": Runs(subject_of(model, (jnp.asarray([TOKENS]),), dictionaries=here, title="model")),
        "other": Runs(subject_of(other, (jnp.asarray([TOKENS]),), title="other")),
        NASTY[1]: Runs(subject_of(hostile, (jnp.ones((2, 3)),), title=NASTY[1])),
        "raising": Runs(subject_of(raising, (jnp.ones(3),), title="raising")),
        "large": Runs(subject_of(large, (jnp.ones(3),), title="large")),
    }
    opened = Served(joined([programs, dict(opened_file(str(folder)))], here))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


@pytest.fixture
def page(driver: Any, served: Served) -> Iterator[Page]:
    """Opens views; after the test, nothing may have been written to the console."""
    driver.get_log("browser")
    yield Page(driver, served.address)
    assert [entry["message"] for entry in driver.get_log("browser")] == []
    assert driver.execute_script("return window.hacked") is None


class Page:
    def __init__(self, driver: Any, address: str) -> None:
        self.driver, self.address = driver, address

    def open(self, *, size: tuple[int, int] = WIDE, scheme: str = "light", **state: Any) -> Page:
        set_size(self.driver, *size, scheme=scheme)
        self.driver.get("about:blank")
        self.driver.get(f"{self.address}#{urllib.parse.quote(json.dumps(state))}")
        return self.settled()

    def settled(self) -> Page:
        """Waits until nothing is awaited."""
        self.until(
            lambda: self.js(
                "const view = document.getElementById('view');"
                "return view && view.firstElementChild && !view.hasAttribute('aria-busy')"
                " && !document.querySelector('.status.busy, progress:not([hidden])')"
                " && !/…$/.test(document.querySelector('output')?.textContent ?? '')"
            )
        )
        return self

    def js(self, code: str, *args: Any) -> Any:
        return self.driver.execute_script(code, *args)

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements("css selector", selector)

    def texts(self, selector: str) -> list[str]:
        return texts(self.driver, selector)

    def button(self, text: str, within: str = "body") -> Any:
        return next(e for e in self.all(f"{within} button") if e.text == text)

    def click(self, element: Any) -> Page:
        self.js("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()
        return self

    def until(self, condition: Any, seconds: int = 180) -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, seconds).until(lambda _: condition())

    def keys(self, *keys: str) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    @property
    def state(self) -> dict[str, Any]:
        """What the address says."""
        return json.loads(urllib.parse.unquote(self.js("return location.hash.slice(1)")) or "{}")

    @property
    def overflow(self) -> int:
        """How many pixels the page is wider than the window."""
        return self.js("return document.documentElement.scrollWidth - document.documentElement.clientWidth")

    def problems(self) -> list[str]:
        """What the automatic checker finds: names for screen readers, contrast, roles, headings."""
        axe = resources.files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
        self.js(axe)
        found = self.driver.execute_async_script(
            "const done = arguments[arguments.length - 1];"
            "axe.run(document, {resultTypes: ['violations']}).then((r) => done(r.violations))"
        )
        return [
            f"{one['id']}: {node['target']} {node['failureSummary']}"
            for one in found
            for node in one["nodes"]
            if one["impact"] in SEVERE
        ]


VIEWS: list[dict[str, Any]] = [
    {"view": "site", "path": "blocks/1/mlp/out"},
    {
        "view": "site",
        "path": "blocks/1/attn/heads",
        "changes": [{"on": True, "kind": "ablate", "path": "blocks/0/out"}],
    },
    {"view": "attention"},
    {"view": "lens"},
    {"view": "attribution"},
    {"view": "sweep"},
    {"view": "features", "path": OUT, "feature": 3},
    {"view": "graph"},
    {"view": "compare"},
    {"view": "findings"},
    {"subject": "store"},
    {"subject": "store", "view": "features", "feature": 3},
    {"subject": "run.jsonl"},
    {"subject": "report.html"},
]


@pytest.mark.parametrize("state", VIEWS, ids=lambda state: "-".join(map(str, [*state.values()][:2])))
def test_every_view_is_accessible_at_every_width(page: Page, state: dict[str, Any]) -> None:
    for size, scheme in ((WIDE, "light"), (WIDE, "dark"), (NARROW, "light")):
        page.open(size=size, scheme=scheme, **state)
        assert page.overflow <= 0, (size, scheme)
        assert page.problems() == [], (size, scheme)
        assert page.texts("#trouble") in ([""], []), (size, scheme)


def test_a_click_on_a_head_and_a_button_change_the_run_and_can_be_undone(page: Page) -> None:
    page.open(view="attention")
    before = page.texts(".next .share")
    page.click(page.all(".thumb")[1]).settled()
    assert page.state["head"] == 1
    page.click(page.button("Zero this head")).settled()
    (change,) = page.state["changes"]
    assert change["kind"] == "ablate" and change["path"].endswith("attn/heads") and change["chosen"] == {"2": [1]}
    page.until(lambda: any("→" in text for text in page.texts(".next .share")))
    assert "1 change" in page.texts("#changes h2")
    page.click(page.all("#changes input[type=checkbox]")[0]).settled()
    page.until(lambda: page.texts(".next .share") == before)
    page.click(page.button("Undo")).settled()
    page.until(lambda: any("→" in text for text in page.texts(".next .share")))
    page.click(page.button("Undo")).settled()
    page.until(lambda: page.texts(".next .share") == before)
    page.click(page.button("Redo")).settled()
    page.until(lambda: page.state["changes"] != [])
    assert page.state["view"] == "attention"  # undoing a change leaves the view


def test_the_address_reopens_what_is_shown(page: Page) -> None:
    page.open(path="blocks/2/mlp/hidden", at=2, show="gradient", token=7)
    title, address = page.texts("#site-title"), page.js("return location.href")
    assert title == ["blocks/2/mlp/hidden"] and page.texts(".token.chosen") == [str(TOKENS[2])]
    page.driver.get("about:blank")
    page.driver.get(address)
    page.settled()
    assert page.texts("#site-title") == title and page.texts(".token.chosen") == [str(TOKENS[2])]
    assert [b.text for b in page.all(".switch .tool.on")] == ["Gradient"]


def saved_files(page: Page) -> list[dict[str, Any]]:
    return page.js("return window.savedFiles")


KEEP_FILES = """
window.savedFiles = [];
const before = URL.createObjectURL;
URL.createObjectURL = (blob) => {
  const at = window.savedFiles.push({type: blob.type, size: blob.size}) - 1;
  const reader = new FileReader();
  reader.onload = () => (window.savedFiles[at].url = reader.result);
  reader.readAsDataURL(blob);
  return before(blob);
};
HTMLAnchorElement.prototype.click = function () {};
"""


@pytest.mark.parametrize("state", [VIEWS[0], *VIEWS[2:5], *VIEWS[6:8], VIEWS[10], VIEWS[12]], ids=str)
def test_every_card_is_saved_as_svg_and_png(page: Page, state: dict[str, Any]) -> None:
    page.open(**state)
    page.js(KEEP_FILES)
    cards = [e for e in page.all("#view .card") if e.find_elements("css selector", ".card-head .tools")]
    assert cards
    for card in cards:
        for kind in ("SVG", "PNG"):
            button = next(b for b in card.find_elements("css selector", ".card-head .tool") if b.text == kind)
            count = len(saved_files(page))
            page.click(button)
            page.until(lambda: len(saved_files(page)) > count and saved_files(page)[-1].get("url"))
            file = saved_files(page)[-1]
            data = base64.b64decode(file["url"].partition(",")[2])
            if kind == "PNG":
                assert data.startswith(b"\x89PNG"), card.text
            else:
                text = data.decode()
                assert text.startswith("<svg") and "color(srgb" not in text and "var(--" not in text.split("<style")[0]
                assert len(re.findall(r"<(rect|path|text|image|circle|line|polyline)\b", text)) >= 2, card.text


def test_nothing_hostile_becomes_markup(page: Page) -> None:
    page.open(subject=NASTY[1])
    assert page.texts("h1") == ["Sonde"] and page.js("return document.getElementById('subject').value") == NASTY[1]
    for name in NASTY[:3]:
        page.open(subject=NASTY[1], path=name)
        assert page.js("return document.getElementById('site-title').textContent") == name
    page.open(subject="raising")
    page.until(lambda: not page.all("#trouble[hidden]"))
    assert NASTY[0] in page.all("#trouble")[0].text
    assert page.js("return document.querySelectorAll('img, script:not([src])').length") == 0


def test_a_model_that_raises_says_where_and_the_page_goes_on(page: Page) -> None:
    page.open(subject="raising")
    page.until(lambda: not page.all("#trouble[hidden]"))
    assert "ValueError" in page.texts("#trouble")[0] and "test_browser.py" in page.texts("#trouble")[0]
    page.js("const s = document.getElementById('subject'); s.value = 'model'; s.dispatchEvent(new Event('change'))")
    page.settled()
    page.until(lambda: page.texts(".token") != [])
    assert page.all("#trouble[hidden]")


def test_the_keyboard_alone_is_enough(page: Page) -> None:
    from selenium.webdriver.common.keys import Keys

    page.open(path="blocks/0/out")
    page.js("document.getElementById('filter').focus()")
    page.keys(*"attn/weights", Keys.ARROW_DOWN)
    assert page.js("return document.activeElement.getAttribute('role')") == "treeitem"
    page.keys(*[Keys.END], Keys.ENTER)
    page.settled()
    assert page.state["path"] == "blocks/2/attn/weights"
    page.js("document.querySelector('.tab.on').focus()")
    page.keys(Keys.ARROW_RIGHT)
    page.settled()
    assert page.state["view"] == "attention"
    assert page.js("return document.activeElement.id") == "tab-attention"
    page.js("document.querySelector('.token.chosen').focus()")
    page.keys(Keys.ARROW_LEFT)
    page.settled()
    assert page.state["at"] == len(TOKENS) - 2
    outline = page.js("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"


def test_a_store_shows_rows_with_tokens_and_features_with_examples(page: Page) -> None:
    page.open(subject="store", at=3)
    tokens = np.random.default_rng(0).integers(0, 40, (8, 12))
    assert page.texts(".row-names div") == [str(token) for token in tokens[3]]
    page.open(subject="store", view="features", feature=3)
    page.until(lambda: page.all(".examples li"))
    assert page.all(".piece.best") and "Features that write alike" in page.texts("#feature h3")
    page.js(KEEP_FILES)
    page.click(page.button("Neuronpedia JSON"))
    page.until(lambda: saved_files(page) and saved_files(page)[-1].get("url"))
    data = json.loads(base64.b64decode(saved_files(page)[-1]["url"].partition(",")[2]))
    assert {"feature_index", "frac_nonzero", "pos_str", "activations"} <= set(data["features"][0])


def test_a_feature_is_steered_with_the_mouse(page: Page) -> None:
    page.open(view="features", path=OUT, feature=3)
    page.until(lambda: any(b.text == "Steer by" for b in page.all("button")))
    page.click(page.button("Steer by")).settled()
    (change,) = page.state["changes"]
    assert change == {
        "on": True,
        "kind": "add",
        "path": f"{OUT}/features",
        "call": 0,
        "chosen": {"2": [3]},
        "factor": 10,
    }
    page.until(lambda: any("→" in text for text in page.texts(".next .share")))


def test_a_saved_page_shows_what_was_shown_without_a_server(page: Page, tmp_path: Path) -> None:
    page.open(path="blocks/2/out")
    page.js(KEEP_FILES)
    page.click(page.button("Save page"))
    page.until(lambda: saved_files(page) and saved_files(page)[-1].get("url"))
    file = tmp_path / "saved.html"
    file.write_bytes(base64.b64decode(saved_files(page)[-1]["url"].partition(",")[2]))
    shown = page.texts("#view .stats dd")
    page.driver.get(file.as_uri())
    page.settled()
    assert page.texts("#site-title") == ["blocks/2/out"] and page.texts("#view .stats dd") == shown
    page.click(page.all("#tab-lens")[0])
    page.until(lambda: "was saved" in page.all("#trouble")[0].text)


def test_two_pages_do_not_disturb_each_other_and_survive_a_restart(page: Page, served: Served) -> None:
    page.open(path="blocks/2/out")
    first = page.driver.current_window_handle
    page.driver.switch_to.new_window("tab")
    page.open(view="attention")
    page.click(page.button("Zero this head")).settled()
    page.driver.close()
    page.driver.switch_to.window(first)
    assert "changes" not in page.state
    page.click(page.all("#tab-lens")[0]).settled()
    assert "Logit lens" in page.texts("h2")


def test_a_stopped_server_is_told_and_the_page_continues_when_it_is_back(driver: Any) -> None:
    subjects = {"f": Runs(subject_of(lambda x: sonde.sow(x * 2, "h").sum(), (jnp.ones(3),), title="f"))}
    served = Served(subjects, token="secret")
    port = int(served.address.split(":")[2].split("/")[0])
    page = Page(driver, served.address).open(path="h")
    served.close()
    page.until(lambda: "stopped" in page.texts("#status")[0])
    assert page.texts("#site-title") == ["h"]
    again = Served(subjects, port=port, token="secret")
    page.until(lambda: "again" in page.texts("#status")[0])
    page.click(page.button("Gradient")).settled()
    assert "Gradient" in page.texts("#view h3")
    again.close()
    driver.get_log("browser")  # the refused connections were written there


def test_a_sweep_can_be_cancelled(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(job: Any, **question: Any) -> None:
        while not job.cancelled.wait(0.02):
            job.progress(1, 2, "a layer")
        job.progress(1, 2)

    page.open(view="sweep")
    endless.__name__ = "sweep"
    slow = OPERATIONS["sweep"]
    monkeypatch.setitem(OPERATIONS, "sweep", _with_arguments_of(slow, endless))
    page.click(page.button("Start"))
    page.until(lambda: page.all("progress:not([hidden])"))
    page.click(page.button("Cancel"))
    page.until(lambda: "Cancelled." in page.texts("#view span.quiet"))


def _with_arguments_of(taken: Any, instead: Any) -> Any:
    class Sweep:
        __code__ = taken.__code__

        def __call__(self, job: Any, **question: Any) -> Any:
            return instead(job, **question)

    return Sweep()


def test_the_tree_of_5000_sites_is_there_and_filters(page: Page) -> None:
    page.open(subject="large")
    assert page.texts("#filter-count") == ["5000"]
    page.js("const f = document.getElementById('filter'); f.value = '1249/d'; f.dispatchEvent(new Event('input'))")
    assert page.texts("#filter-count") == ["1 of 5000"]


def test_a_long_run_zooms_and_shows_its_alerts(page: Page) -> None:
    page.open(subject="run.jsonl")
    page.until(lambda: any("step 81" in text for text in page.texts(".alerts .link")))
    page.open(subject="long.jsonl")
    page.until(lambda: page.all("canvas.timeline"))
    page.js("document.querySelector('canvas.timeline').focus()")
    page.keys("+", "+", "+")
    page.until(lambda: page.js("return document.activeElement.className") == "timeline")


def test_the_graph_is_pruned_pinned_grouped_and_saved(page: Page) -> None:
    page.open(view="graph", graph={"share": 1})
    page.until(lambda: page.all(".graph .node"))
    nodes = len(page.all(".graph .node"))
    assert "faithfulness 1 " in page.texts("output")[0]
    for number in range(2):
        page.js("document.querySelectorAll('.graph .node')[arguments[0]].focus()", number)
        page.keys("g")
        page.until(lambda: len(page.all(".graph .node.picked")) == number + 1)
    page.click(page.button("Group"))
    page.until(lambda: len(page.all(".graph .node")) == nodes - 1)
    assert len(page.state["graph"]["groups"]["group 1"]) == 2
    for number in range(2):  # a group that is called like a node gets another name, and no other is lost
        page.js("document.querySelectorAll('.graph .node:not(.group)')[arguments[0]].focus()", number)
        page.keys("g")
        page.until(lambda: len(page.all(".graph .node.picked")) == number + 1)
    name = page.js("return document.querySelector('.graph .node:not(.group, .picked)').dataset.id")
    page.js("document.querySelector('.form .other[aria-label=\"Name of the group\"]').value = arguments[0]", name)
    page.click(page.button("Group"))
    page.until(lambda: set(page.state["graph"]["groups"]) == {"group 1", f"{name} 2"})
    assert len(page.all(".graph .node")) == nodes - 2 and page.texts("#trouble") == [""]
    page.js("[...document.querySelectorAll('.graph .node:not(.group)')].pop().focus()")
    page.keys("p")
    page.until(lambda: page.state["graph"].get("pinned"))
    page.until(lambda: page.all(".graph .node.pinned"))
    page.js(KEEP_FILES)
    page.click(page.button("JSON"))
    page.until(lambda: saved_files(page) and saved_files(page)[-1].get("url"))
    data = json.loads(base64.b64decode(saved_files(page)[-1]["url"].partition(",")[2]))
    assert len(data["qParams"]["supernodes"]) == 2 and data["qParams"]["pinnedIds"] == page.state["graph"]["pinned"]
    ids = {node["node_id"] for node in data["nodes"]}
    assert all({link["source"], link["target"]} <= ids for link in data["links"])


def test_a_report_is_shown_in_a_frame_without_rights(page: Page) -> None:
    page.open(subject="report.html")
    (frame,) = page.all("iframe.report")
    assert frame.get_attribute("sandbox") == "allow-scripts"
    page.driver.switch_to.frame(frame)
    page.until(lambda: page.texts("h1") == ["A report"])
    page.driver.switch_to.default_content()


def test_the_page_in_a_frame_of_a_notebook_asks_by_messages(page: Page, tmp_path: Path) -> None:
    from sonde.viewer import notebook
    from sonde.viewer.assets import whole_page
    from sonde.viewer.conversation import answered
    from sonde.viewer.operations import Job

    runs = Runs(subject_of(lambda x: sonde.sow(x * 2, "h").sum(), (jnp.ones(3),), title="f"))
    host = tmp_path / "notebook.html"
    module = notebook._FRAME.replace("export default { render };", "window.render = render;")
    host.write_text(f"<!doctype html><title>notebook</title><div id=out></div><script>{module}</script>")
    page.driver.get(host.as_uri())
    page.js(
        "window.asked = []; window.told = null;"
        "const model = {get: () => arguments[0], send: (m) => asked.push(m.sonde), on: (_, f) => (told = f), off() {}};"
        "render({model, el: document.getElementById('out')})",
        whole_page("f"),
    )
    seen = 0
    for _ in range(200):
        asked = page.js("return window.asked")
        for text in asked[seen:]:
            message = json.loads(text)
            result = answered(Job({"f": runs}), message["op"], message.get("args", {}))
            page.js("window.told(arguments[0])", {"id": message["id"], **json.loads(json.dumps(result))})
        seen = len(asked)
        page.driver.switch_to.frame(0)
        done = page.texts("#site-title") == ["h"]
        page.driver.switch_to.default_content()
        if done:
            break
    assert done
