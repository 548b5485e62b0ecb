"""The documentation site in a real browser: nothing is cut off, the search finds things, pages lead to one another.

Run by `make test-browser`. With `SCREENSHOTS=folder` in the environment, pictures of pages are written there.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.chromium import chromium, set_size

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parent.parent
REPOSITORY = "https://github.com/someone/sonde"
NOT_RUN = "execute: false"  # `make docs` runs the notebooks


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, with an address of the repository, and notebooks that were not run."""
    folder = tmp_path_factory.mktemp("site")
    for name in ("docs", "skills", "src", "CHANGELOG.md"):
        (folder / name).symlink_to(ROOT / name)
    settings = (ROOT / "mkdocs.yml").read_text()
    assert settings.count("execute: true") == 1
    (folder / "mkdocs.yml").write_text(settings.replace("execute: true", NOT_RUN))
    project = (ROOT / "pyproject.toml").read_text()
    project = re.sub(r'^repository = "[^"]*"', f'repository = "{REPOSITORY}"', project, flags=re.MULTILINE)
    (folder / "pyproject.toml").write_text(project)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


def until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, f"waited for {what} in vain"
        time.sleep(0.05)


def picture(driver: Any, name: str) -> None:
    if folder := os.environ.get("SCREENSHOTS"):
        driver.save_screenshot(str(Path(folder) / f"site-{name}.png"))


# What goes beyond the right edge, unless something around it can be scrolled, or hides it on purpose (menus).
BEYOND = """
const width = document.documentElement.clientWidth;
if (document.documentElement.scrollWidth > width + 1) {
  const found = [];
  for (const e of document.querySelectorAll('.md-content *')) {
    if (e.getClientRects().length && e.getBoundingClientRect().right > width + 1) found.push(e);
  }
  return found.filter(e => !found.some(o => o !== e && e.contains(o))).map(e => e.outerHTML.slice(0, 200)).slice(0, 3);
}
const cut = [];
for (const e of document.querySelectorAll('.md-content pre, .md-content table, .md-content img, .md-content p')) {
  if (!e.getClientRects().length || e.getBoundingClientRect().right <= width + 1) continue;
  let scrolls = false;
  for (let p = e; p && p !== document.body; p = p.parentElement) {
    scrolls = scrolls || /auto|scroll/.test(getComputedStyle(p).overflowX);
  }
  if (!scrolls) cut.push(e.outerHTML.slice(0, 200));
}
return cut;
"""


@pytest.mark.parametrize(("width", "height"), [(1360, 900), (400, 800)])
def test_nothing_is_cut_off(site: Path, driver: Any, width: int, height: int) -> None:
    set_size(driver, width, height)
    pages = sorted(page for page in site.rglob("*.html") if page.name != "404.html")
    assert len(pages) > 60
    cut = {}
    for page in pages:
        driver.get(page.as_uri())
        if found := driver.execute_script(BEYOND):
            cut[str(page.relative_to(site))] = found
    assert cut == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1360, 400])
def test_the_first_pages(site: Path, driver: Any, width: int, scheme: str) -> None:
    set_size(driver, width, 900, scheme=scheme)
    for name in ("index", "install", "how-to/come-from-pytorch"):
        driver.get((site / f"{name}.html").as_uri())
        picture(driver, f"{name.replace('/', '-')}-{width}-{scheme}")
        for image in driver.find_elements("css selector", ".md-content img"):
            until(lambda: driver.execute_script("return arguments[0].naturalWidth > 100", image), "a picture")


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("install", "install.html"),
        ("colab", "install.html"),
        ("nan", "how-to/find-the-first-nan.html"),
        ("pytorch", "how-to/come-from-pytorch.html"),
        ("maxtext", "how-to/come-from-maxtext.html"),
        ("agent", "how-to/agents.html"),
    ],
)
def test_the_search_finds(site: Path, driver: Any, words: str, page: str) -> None:
    """The page is among the first five."""
    set_size(driver, 1360, 900)
    driver.get((site / "index.html").as_uri())
    box = driver.find_element("css selector", "input.md-search__input")
    until(lambda: driver.execute_script("return document.readyState") == "complete", "the page")
    driver.execute_script("arguments[0].focus()", box)
    box.send_keys(words)
    results = "a.md-search-result__link"
    until(lambda: driver.find_elements("css selector", results), "a result")
    found = [link.get_attribute("href").partition("?")[0] for link in driver.find_elements("css selector", results)]
    pages = list(dict.fromkeys(address.partition("#")[0] for address in found))
    assert (site / page).as_uri() in pages[:5], pages


def test_pages_lead_on(site: Path, driver: Any) -> None:
    set_size(driver, 1360, 900)
    driver.get((site / "install.html").as_uri())
    assert driver.find_element("css selector", ".md-footer__link--prev").get_attribute("href").endswith("index.html")
    following = driver.find_element("css selector", ".md-footer__link--next").get_attribute("href")
    assert following.endswith("tutorials/first-capture.html")
    source = driver.find_element("css selector", ".md-header a.md-source")
    assert source.get_attribute("href").rstrip("/") == REPOSITORY


def test_the_theme_can_be_switched(site: Path, driver: Any) -> None:
    set_size(driver, 1360, 900)
    driver.get((site / "index.html").as_uri())
    scheme = "return document.body.getAttribute('data-md-color-scheme')"
    assert driver.execute_script(scheme) == "default"
    driver.find_element("css selector", "label[title='Dark']").click()
    until(lambda: driver.execute_script(scheme) == "slate", "the dark scheme")
    driver.find_element("css selector", "label[title='Light']").click()
    until(lambda: driver.execute_script(scheme) == "default", "the light scheme")


def test_notebooks_open_in_colab(site: Path, driver: Any) -> None:
    driver.get((site / "notebooks" / "find-a-nan.html").as_uri())
    link = driver.find_element("link text", "Open in Colab").get_attribute("href")
    assert link.endswith("/github/someone/sonde/blob/main/docs/notebooks/find-a-nan.ipynb")


def test_pages_hold_no_path_of_the_machine(site: Path) -> None:
    """What examples print is shown as it was written down; what notebooks print is theirs."""
    for page in site.rglob("*.html"):
        assert str(ROOT) not in page.read_text(), page


def test_agents_find_the_text_of_the_pages(site: Path) -> None:
    text = (site / "llms.txt").read_text()
    links = re.findall(r"^- \[[^]]*\]\(([^)]+)\)", text, re.MULTILINE)
    assert len(links) > 60
    for link in links:
        assert (site / link).is_file(), link
    assert (site / "skills" / "SKILL.md").is_file()
