"""Turns `sonde.alias` on in a child process of `sonde check-move`, when Flax is first imported there.

Python imports the first `sitecustomize` on its path when it starts; `sonde check-move` puts this folder first. At exit
the process writes what its packages asked of Flax.
"""

from __future__ import annotations

import atexit
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

REPORTS = "SONDE_CHECK_MOVE_REPORTS"  # the folder for what was asked


class _OnFirstImport(importlib.abc.MetaPathFinder):
    """Waits for Flax, so that processes without it do not load Sonde and JAX."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Turns the alias on, which then finds the module."""
        if fullname.partition(".")[0] != "flax":
            return None
        sys.meta_path.remove(self)
        import sonde

        sonde.alias()
        atexit.register(_write)
        return sys.meta_path[0].find_spec(fullname, path, target)


def _write() -> None:
    import sonde

    asks = [{"name": ask.name, "answer": ask.answer, "where": ask.where} for ask in sonde.alias_report()]
    Path(os.environ[REPORTS], f"{os.getpid()}.json").write_text(json.dumps(asks))


def _run_the_users() -> None:
    """Runs the `sitecustomize` that this one hides, if there is one."""
    folder = str(Path(__file__).parent)
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", [entry for entry in sys.path if entry != folder])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if REPORTS in os.environ:
    sys.meta_path.insert(0, _OnFirstImport())
    _run_the_users()
