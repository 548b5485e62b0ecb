"""The addresses of the project: set in one place, used by the site, the package and its README."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.site_hooks import site_hook

ROOT = Path(__file__).resolve().parent.parent
hook = site_hook("addresses")
KNOWN = hook.Addresses("https://github.com/someone/sonde", "https://docs.example/sonde/")
UNKNOWN = hook.Addresses("", "")


def test_they_are_read_from_pyproject(tmp_path: Path) -> None:
    assert isinstance(hook.addresses(ROOT / "pyproject.toml"), hook.Addresses)
    file = tmp_path / "pyproject.toml"
    file.write_text('[tool.sonde]\nrepository = "https://github.com/a/b/"\ndocumentation = "https://c/"\n')
    assert hook.addresses(file) == hook.Addresses("https://github.com/a/b", "https://c/")


def test_links_of_the_package() -> None:
    assert UNKNOWN.urls == {}
    assert KNOWN.urls["Changelog"] == "https://github.com/someone/sonde/blob/main/CHANGELOG.md"
    assert list(KNOWN.urls) == ["Documentation", "Repository", "Changelog", "Issues"]


def test_the_readme_of_the_package_has_absolute_links() -> None:
    text = (ROOT / "README.md").read_text()
    assert UNKNOWN.absolute(text, "0.1.0") == text
    changed = KNOWN.absolute(text, "0.1.0")
    assert "](https://github.com/someone/sonde/raw/v0.1.0/docs/pictures/records.png)" in changed
    assert "](https://github.com/someone/sonde/blob/v0.1.0/docs/install.md)" in changed
    assert not hook._RELATIVE_LINK.search(changed)
    assert KNOWN.absolute("[a](https://b) [c](#d)", "1") == "[a](https://b) [c](#d)"


@pytest.mark.parametrize(
    ("repository", "opens"), [("https://github.com/a/b", True), ("https://other.example/a/b", False)]
)
def test_notebooks_open_in_colab_if_they_are_on_github(repository: str, opens: bool) -> None:
    config = {"extra": {"addresses": hook.Addresses(repository, "")}}
    page = SimpleNamespace(file=SimpleNamespace(src_uri="notebooks/find-a-nan.ipynb"))
    text = hook.on_page_content("<p>cells</p>", page, config, None)
    link = "https://colab.research.google.com/github/a/b/blob/main/docs/notebooks/find-a-nan.ipynb"
    assert (link in text) == opens and text.endswith("<p>cells</p>")
    page.file.src_uri = "index.md"
    assert hook.on_page_content("text", page, config, None) == "text"


def test_the_site_links_to_the_repository(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        f'[tool.sonde]\nrepository = "{KNOWN.repository}"\ndocumentation = "{KNOWN.documentation}"\n'
    )
    config = {"config_file_path": str(tmp_path / "mkdocs.yml"), "extra": {}}
    hook.on_config(config)
    assert config["repo_url"] == KNOWN.repository and config["repo_name"] == "someone/sonde"
    assert config["site_url"] == KNOWN.documentation
