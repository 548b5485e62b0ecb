"""Where the repository and the site are: `[tool.sonde]` in pyproject.toml, and nowhere else.

While they are empty nothing links to them. Once they are set, the site has a link to the repository, notebooks open in
Colab, and the package has project links and a README whose links and pictures work on the package index.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

_RELATIVE_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#|mailto:)([^)\s]+)\)")


@dataclasses.dataclass(frozen=True)
class Addresses:
    """The address of the repository and that of the site; empty while they are unknown."""

    repository: str
    documentation: str

    @property
    def urls(self) -> dict[str, str]:
        """The links of the package, by title."""
        urls = {"Documentation": self.documentation, "Repository": self.repository}
        if self.repository:
            urls["Changelog"] = f"{self.repository}/blob/main/CHANGELOG.md"
            urls["Issues"] = f"{self.repository}/issues"
        return {title: url for title, url in urls.items() if url}

    def colab(self, path: str) -> str:
        """Where Colab opens a notebook of the repository; empty if it is not on GitHub.

        Args:
            path: The notebook, below the root of the repository.
        """
        found = re.fullmatch(r"https://github\.com/([^/]+/[^/]+)", self.repository)
        return f"https://colab.research.google.com/github/{found[1]}/blob/main/{path}" if found else ""

    def absolute(self, text: str, version: str) -> str:
        """Markdown whose relative links lead to the files of a version in the repository."""
        if not self.repository:
            return text

        def replaced(link: re.Match[str]) -> str:
            kind = "raw" if link[1] else "blob"
            return f"{link[1]}[{link[2]}]({self.repository}/{kind}/v{version}/{link[3]})"

        return _RELATIVE_LINK.sub(replaced, text)


def addresses(pyproject: Path) -> Addresses:
    """What `[tool.sonde]` says."""
    table = tomllib.loads(pyproject.read_text(encoding="utf-8"))["tool"]["sonde"]
    return Addresses(table["repository"].rstrip("/"), table["documentation"])


def on_config(config: Any) -> Any:
    """Sets the addresses of the site; called by MkDocs."""
    found = addresses(Path(config["config_file_path"]).parent / "pyproject.toml")
    config["repo_url"] = found.repository or None
    config["site_url"] = found.documentation or None
    config["extra"]["addresses"] = found
    if found.repository:
        config["repo_name"] = found.repository.removeprefix("https://").partition("/")[2]
        config["edit_uri"] = "edit/main/docs/"
    return config


def on_page_content(text: str, page: Page, config: Any, files: Files) -> str:
    """Adds the link to Colab to notebooks; called by MkDocs."""
    if not page.file.src_uri.endswith(".ipynb"):
        return text
    link = config["extra"]["addresses"].colab(f"docs/{page.file.src_uri}")
    return f'<p><a class="md-button" href="{link}">Open in Colab</a></p>\n{text}' if link else text
