"""Sonde or Flax: which library a module comes from, and what the bridge needs of it.

Everything here uses names that both libraries have. Flax is imported only if a module of Flax is used.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from typing import Any


@dataclasses.dataclass(frozen=True)
class Library:
    """The two faces of a library, `nnx` and `linen`, and the name it is imported under."""

    name: str

    @functools.cached_property
    def nnx(self) -> Any:
        """The object face."""
        return importlib.import_module(f"{self.name}.nnx")

    @functools.cached_property
    def linen(self) -> Any:
        """The functional face."""
        return importlib.import_module(f"{self.name}.linen")

    def __hash__(self) -> int:
        return hash(self.name)


SONDE = Library("sonde")
FLAX = Library("flax")


def library_of(thing: object) -> Library:
    """The library of a module or of a class of modules.

    Raises:
        TypeError: It is a module of neither library.
    """
    cls = thing if isinstance(thing, type) else type(thing)
    for base in cls.__mro__:
        package = base.__module__.partition(".")[0]
        if base.__name__ == "Module" and package in ("sonde", "flax"):
            return SONDE if package == "sonde" else FLAX
    raise TypeError(
        f"{thing!r} is not a module: the bridge takes nnx and linen modules and their classes, from Sonde or Flax."
    )


def is_linen(thing: object) -> bool:
    """Whether a thing is a linen module of either library; a module class is not."""
    return not isinstance(thing, type) and hasattr(thing, "init_with_output") and hasattr(thing, "apply")
