"""Metadata of the package that is made when it is built: project links, and a README whose links are absolute."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

ROOT = Path(__file__).parent


class LinksHook(MetadataHookInterface):
    """Fills in `urls` and `readme` from `[tool.sonde]`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Adds to the metadata; called by hatchling."""
        found = _addresses_hook().addresses(ROOT / "pyproject.toml")
        version: dict[str, str] = {}
        exec((ROOT / "src" / "sonde" / "_version.py").read_text(encoding="utf-8"), version)
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        metadata["urls"] = found.urls
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": found.absolute(text, version["__version__"]),
        }


def _addresses_hook() -> ModuleType:
    """`docs/hooks/addresses.py`, which the site uses too."""
    spec = importlib.util.spec_from_file_location("addresses", ROOT / "docs" / "hooks" / "addresses.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
