"""The public names of a package, listed once, in its stub `__init__.pyi`, and loaded when first used.

A type checker reads the stub, so it sees a misspelled name; at run time the same list says where each name lives. A
package does

    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)

and nothing behind its names is imported before it is needed. The stub holds only lines of the form
`from sonde.tools.numerics.nonfinite import NonFinite as NonFinite`: the `as` says that a name is public, for a type
checker as for this file. A name that is a module is listed as `from sonde.nnx.training import metrics as metrics`.

A name of the last release that has a new one (`_renames.NAMES`) is found too, with a warning.
"""

from __future__ import annotations

import ast
import difflib
import functools
import importlib
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from sonde._renames import NAMES, renamed, warn_of


def lazy_names(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Makes the names in a package's stub importable from the package.

    Args:
        package: `__name__` of the package.
        file: `__file__` of the package, next to which the stub is.

    Returns:
        `__getattr__`, `__dir__` and `__all__` for the package.
    """
    homes = _homes(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))

    def load(name: str) -> Any:
        if name not in homes:
            if (new_name := renamed(package, name)) is not None:
                return _under_old_name(package, name, *new_name)
            near = _nearest(package, name, homes)
            text = f"; nearest: {', '.join(near)}" if near else ""
            raise AttributeError(f"module {package!r} has no attribute {name!r}{text}")
        module, attribute = homes[name]
        value = _part_of(package, attribute) if module == package else _attribute(module, attribute)
        setattr(sys.modules[package], name, value)  # the next use is then a plain lookup
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    # `from sonde import *` must not import every package below.
    return load, names, sorted(name for name, (module, _) in homes.items() if module != package)


def _under_old_name(package: str, old: str, new: str, argument: str | None) -> Any:
    """What an old name stands for. It is not stored in the package, so that every use warns."""
    warn_of(f"{package}.{old}", f"{package}.{NAMES[package][old]}", stacklevel=4)
    value = getattr(sys.modules[package], new)
    return value if argument is None else functools.partial(value, argument)


def _homes(stub: str) -> dict[str, tuple[str, str]]:
    """The module and the attribute behind each public name of a stub."""
    return {
        alias.asname: (statement.module, alias.name)
        for statement in ast.parse(stub).body
        if isinstance(statement, ast.ImportFrom) and statement.module
        for alias in statement.names
        if alias.asname is not None
    }


def _nearest(package: str, name: str, homes: Iterable[str]) -> list[str]:
    """What may have been meant by a name that a package does not have."""
    if name.startswith("_"):  # nobody misspells `__wrapped__`, which many tools ask every object for
        return []
    return _packages_with(package, name) or difflib.get_close_matches(name, list(homes), n=3)


def _packages_with(package: str, name: str) -> list[str]:
    """The name in the packages below that have it: `sonde.tools.steer`, for `sonde.steer`."""
    if package != "sonde":
        return []
    doors = sorted(Path(__file__).parent.glob("*/__init__.py*"))
    listed = re.compile(rf"\bas {re.escape(name)}$|\"{re.escape(name)}\"", re.MULTILINE)
    return [f"sonde.{door.parent.name}.{name}" for door in doors if listed.search(door.read_text(encoding="utf-8"))]


def _attribute(module: str, attribute: str) -> Any:
    """An attribute of a module, or the module below it of that name."""
    value = getattr(importlib.import_module(module), attribute, None)
    return _part_of(module, attribute) if value is None else value


def _part_of(package: str, module: str) -> Any:
    return importlib.import_module(f"{package}.{module}")
