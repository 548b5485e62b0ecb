"""Writes `llms.txt` and `llms-full.txt` into the site: its pages for language models, as a list and as one text.

The form is that of https://llmstxt.org: a title, a summary, and links with a line about each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files
    from mkdocs.structure.nav import Navigation

SUMMARY = (
    "Sonde (`pip install sonde-jax`, `import sonde`) is a Python library for JAX: it records every value and gradient "
    "inside a program, under jit, vmap, scan and grad, replaces values, and finds what made a NaN."
)
OPTIONAL = ("API", "Errors", "Reference")
"""Sections that a model with little room may leave out; the first of them is not in `llms-full.txt`."""


@dataclass(frozen=True)
class Entry:
    """A page: its section, its title, its address in the site, and its text."""

    section: str
    title: str
    address: str
    text: str


_entries: list[Entry] = []  # from `on_nav`, until the site is written


def on_nav(nav: Navigation, config: Any, files: Files) -> Navigation:
    """Reads the pages in the order of the site; called by MkDocs."""
    _entries.clear()
    for page in nav.pages:
        source = page.file.content_string
        text = notebook_text(source) if page.file.src_uri.endswith(".ipynb") else source
        section = page.ancestors[-1].title if page.ancestors else "Start"
        _entries.append(Entry(section, title_of(text), page.file.src_uri, text))
    return nav


def on_post_build(config: Any) -> None:
    """Writes the files; called by MkDocs."""
    site, base = Path(config["site_dir"]), config["site_url"] or ""
    (site / "llms.txt").write_text(list_of(_entries, base), encoding="utf-8")
    (site / "llms-full.txt").write_text(whole_text(_entries), encoding="utf-8")
    # The pages themselves, as text: what the list links to.
    for entry in _entries:
        path = site / text_address(entry.address)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(entry.text, encoding="utf-8")
    skill = Path(config["config_file_path"]).parent / "skills" / "sonde" / "SKILL.md"
    (site / "skills").mkdir(exist_ok=True)
    (site / "skills" / "SKILL.md").write_text(skill.read_text(encoding="utf-8"), encoding="utf-8")


def title_of(text: str) -> str:
    """The first heading of a page."""
    heading = re.search(r"^# (.+)$", text, re.MULTILINE)
    return heading[1].strip() if heading else "Sonde"


def text_address(source: str) -> str:
    """Where the text of a page is in the site: notebooks become Markdown too."""
    return re.sub(r"\.(md|ipynb)$", ".md", source)


def about(text: str) -> str:
    """The first sentence of the first paragraph of a page, on one line."""
    body = re.sub(r"^```.*?^```$", "", text.partition("\n")[2], flags=re.MULTILINE | re.DOTALL)
    paragraphs = [p for p in body.split("\n\n") if re.match(r"\s*[A-Za-z`*\[]", p)]
    first = " ".join(paragraphs[0].split()) if paragraphs else ""
    first = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", first)
    return re.split(r"(?<=[a-z`)])[.:] ", first)[0].rstrip(".:")


def list_of(entries: Iterable[Entry], base: str) -> str:
    """The text of `llms.txt`.

    Args:
        entries: The pages.
        base: The address of the site; empty for links that are relative to it.
    """
    lines = ["# Sonde", "", f"> {SUMMARY}"]
    section, optional = None, []
    for entry in entries:
        said = about(entry.text)
        line = f"- [{entry.title}]({base}{text_address(entry.address)})" + (f": {said}" if said else "")
        if entry.section in OPTIONAL:
            optional.append(line)
            continue
        if entry.section != section:
            section = entry.section
            lines += ["", f"## {section}", ""]
        lines.append(line)
    return "\n".join([*lines, "", "## Optional", "", *optional, ""])


def whole_text(entries: Iterable[Entry]) -> str:
    """The text of `llms-full.txt`: every page but those of the API, one after the other."""
    parts = [f"<!-- {entry.address} -->\n\n{entry.text.strip()}" for entry in entries if entry.section != OPTIONAL[0]]
    return f"> {SUMMARY}\n\n" + "\n\n".join(parts) + "\n"


def notebook_text(source: str) -> str:
    """A notebook as Markdown, without what it prints."""
    return "\n\n".join(_cells(json.loads(source)))


def _cells(notebook: Any) -> Iterator[str]:
    for cell in notebook["cells"]:
        text = "".join(cell["source"]).strip()
        yield text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"
