"""Optional packages: imported on first use, with a message that says how to install them."""

from __future__ import annotations

import importlib
from typing import Any


class MissingExtra(ModuleNotFoundError):
    """An optional package is not installed; the message says how to install it."""


def load(module: str, *, extra: str, purpose: str) -> Any:
    """Imports an optional module.

    Args:
        module: what to import.
        extra: the extra of this distribution that brings it.
        purpose: what it is needed for, as in "To ..., install ...".

    Raises:
        MissingExtra: the package is not installed. If it is installed but one of its own dependencies is
            missing, that error is raised unchanged.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise
        raise MissingExtra(
            f"{purpose} needs the package {module.partition('.')[0]!r}, which is not installed. Install it with "
            f"`pip install 'sonde-jax[{extra}]'`.",
            name=error.name,
        ) from error
