"""What is written for language models: `llms.txt`, the skill, and AGENTS.md."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from tests.site_hooks import site_hook
from tests.test_documents import ROOT, agrees, examples_of, page_module, run

SKILL = ROOT / "skills" / "sonde" / "SKILL.md"


@pytest.fixture(scope="module")
def llms() -> ModuleType:
    """The hook of the site that writes `llms.txt`."""
    return site_hook("llms")


def test_the_examples_of_the_skill_run() -> None:
    page = SKILL.read_text()
    with page_module("skill") as namespace, np.printoptions():
        import linecache

        linecache.cache[str(SKILL)] = (len(page), None, _only_code(page), str(SKILL))
        for block, shown in examples_of(page):
            assert agrees(shown.text if shown else "", run(block, str(SKILL), namespace))
        del linecache.cache[str(SKILL)]


def _only_code(page: str) -> list[str]:
    lines = ["\n"] * page.count("\n")
    for block, _ in examples_of(page):
        lines[block.line : block.line + block.text.count("\n")] = block.text.splitlines(keepends=True)
    return lines


def test_the_skill_has_the_header_that_agents_read() -> None:
    header = re.match(r"---\nname: ([a-z-]+)\ndescription: (.+)\n---\n\n# ", SKILL.read_text())
    assert header is not None and header[1] == SKILL.parent.name
    assert len(header[2]) <= 1024


@pytest.mark.parametrize("page", [SKILL, ROOT / "AGENTS.md"], ids=lambda page: page.name)
def test_the_commands_that_are_named_exist(page: Path) -> None:
    from sonde.cli.program import sonde_command

    named = set(re.findall(r"`sonde ([a-z-]+)", page.read_text()))
    assert named and named <= set(sonde_command.commands)


def test_the_list_of_pages(llms: ModuleType) -> None:
    entries = [
        llms.Entry("Start", "Sonde", "index.md", "# Sonde\n\nSee [inside](x.md) any `f`. More."),
        llms.Entry(
            "Debug", "Find a NaN", "how-to/nan.md", "# Find a NaN\n\n```sh\nx\n```\n\nWhich operation made it: so."
        ),
        llms.Entry("API", "sonde", "api/sonde.md", "# sonde\n"),
    ]
    text = llms.list_of(entries, "https://docs.example/")
    assert text.startswith(f"# Sonde\n\n> {llms.SUMMARY}\n\n## Start\n\n")
    assert "- [Sonde](https://docs.example/index.md): See inside any `f`\n" in text
    assert "## Debug\n\n- [Find a NaN](https://docs.example/how-to/nan.md): Which operation made it\n" in text
    assert text.endswith("## Optional\n\n- [sonde](https://docs.example/api/sonde.md)\n")
    whole = llms.whole_text(entries)
    assert "<!-- how-to/nan.md -->\n\n# Find a NaN" in whole and "api/sonde.md" not in whole


def test_every_page_has_a_line_about_it(llms: ModuleType) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        line = llms.about(page.read_text())
        assert 10 < len(line) < 400 and "\n" not in line, page


def test_notebooks_become_text(llms: ModuleType) -> None:
    cells = [{"cell_type": "markdown", "source": ["# A\n", "text"]}, {"cell_type": "code", "source": ["x = 1\n"]}]
    assert llms.notebook_text(json.dumps({"cells": cells})) == "# A\ntext\n\n```python\nx = 1\n```"
    assert llms.text_address("notebooks/a.ipynb") == "notebooks/a.md"


def test_the_files_are_written_beside_the_pages(llms: ModuleType, tmp_path: Path) -> None:
    source = SimpleNamespace(content_string="# Sonde\n\nSee inside.", src_uri="index.md")
    page = SimpleNamespace(file=source, ancestors=[])
    llms.on_nav(SimpleNamespace(pages=[page]), {}, None)
    llms.on_post_build({"site_dir": tmp_path, "site_url": None, "config_file_path": str(ROOT / "mkdocs.yml")})
    assert "- [Sonde](index.md): See inside" in (tmp_path / "llms.txt").read_text()
    assert "# Sonde" in (tmp_path / "llms-full.txt").read_text()
    assert (tmp_path / "index.md").read_text() == source.content_string
    assert (tmp_path / "skills" / "SKILL.md").read_text() == SKILL.read_text()
