"""Import paths for names that live elsewhere in the package: those of Flax's files, and those of files that moved.

Code written for Flax imports `nnx.nn.linear` or `nnx.graphlib`; here the layers and functions live in other files. A
table says which path stands for which modules, and `hand_on` makes the paths importable. The module at such a
path holds nothing itself. A name is looked up when it is used: first in the modules that the path stands for, in order,
then in the package, and last among the types for annotations (`sonde.flax.annotation_types`).

If the path is a loaded module of the package, that module keeps its own names and gets these as well.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from typing import Any

from sonde._renames import warn_of

_MISSING: Any = object()


def hand_on(package: str, paths: Mapping[str, Sequence[str]]) -> None:
    """Makes paths below a package importable.

    Args:
        package: the package, which is being imported.
        paths: the modules that each path stands for, both relative to the package; parents before children.
    """
    for path, sources in paths.items():
        name = f"{package}.{path}"
        module = _existing(name) if name in sys.modules else _new(name)
        places = [source if source.startswith("sonde.") else f"{package}.{source}" for source in sources]
        module.__dict__["__getattr__"] = _lookup(name, [*places, package, "sonde.flax.annotation_types"])
        if not hasattr(module, "__file__"):
            module.__dict__["__dir__"] = _listing(places)
        parent, _, last = name.rpartition(".")
        setattr(sys.modules[parent], last, module)


def forward_moved_modules(moves: Mapping[str, str]) -> None:
    """Keeps the old paths of modules importable, with a warning that says the new one.

    Args:
        moves: the new path of each old one; parents before children.
    """
    for old, new in moves.items():
        module = _new(old)
        module.__dict__["__getattr__"] = _forwarding(old, new)
        module.__dict__["__dir__"] = _listing([new])
        parent, _, last = old.rpartition(".")
        setattr(sys.modules[parent], last, module)


def _forwarding(old: str, new: str) -> Callable[[str], Any]:
    def lookup(attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(f"module {old!r} has no attribute {attribute!r}")
        warn_of(old, new)
        return getattr(importlib.import_module(new), attribute)

    return lookup


def _existing(name: str) -> types.ModuleType:
    module = sys.modules[name]
    if hasattr(module, "__getattr__"):
        raise ValueError(f"{name} defines `__getattr__`, so it cannot pass on other names.")
    return module


def _new(name: str) -> types.ModuleType:
    module = types.ModuleType(name, f"Passes on names under the path that they have in Flax, {name}.")
    module.__path__ = []
    module.__spec__ = ModuleSpec(name, None, is_package=True)
    sys.modules[name] = module
    return module


def _listing(places: Sequence[str]) -> Any:
    return lambda: sorted({n for place in places for n in dir(importlib.import_module(place)) if not n.startswith("_")})


def _lookup(name: str, places: Sequence[str]) -> Any:
    def lookup(attribute: str) -> Any:
        if not attribute.startswith("__"):
            for place in places:
                found = getattr(importlib.import_module(place), attribute, _MISSING)
                if found is not _MISSING:
                    return found
        raise AttributeError(f"module {name!r} has no attribute {attribute!r}")

    return lookup
