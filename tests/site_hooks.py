"""Loads the files that the build of the site runs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "hooks"


def site_hook(name: str) -> ModuleType:
    """A file of `docs/hooks` as a module."""
    spec = importlib.util.spec_from_file_location(f"site_hook_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up here
    spec.loader.exec_module(module)
    return module
