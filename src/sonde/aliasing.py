"""`alias`: `flax.nnx` and `flax.linen` mean Sonde, for packages written for Flax.

While it is on, every `import flax...` is handled here. `flax.nnx`, `flax.linen` and everything below them are
Sonde's own modules. The rest (`flax.core`, `flax.struct`, `flax.serialization`, `flax.training`, ...) offers Sonde's
names first; names that Sonde lacks come from Flax, if it is installed.

Sharp edges:

* It only affects imports. A package that was imported before keeps what it imported; one that imports inside its
  functions must be called while the alias is on. If it is turned on at the start of a program and stays on, neither
  matters.
* It changes `sys.modules` for the whole process, all threads included.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.metadata
import sys
import threading
import types
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any, Self

from sonde import _flax_flags, serialization
from sonde._flax_release import FOLLOWED

#: Other modules of Flax, each with the modules of Sonde that provide its names.
_AROUND = {
    "flax": (),
    "flax.core": ("sonde.linen.frozen_dict", "sonde.linen.meta", "sonde.linen.filters"),
    "flax.core.frozen_dict": ("sonde.linen.frozen_dict",),
    "flax.core.meta": ("sonde.linen.meta",),
    "flax.errors": ("sonde.errors",),
    "flax.serialization": ("sonde.serialization",),
    "flax.struct": ("sonde.struct",),
    "flax.training": (),
    "flax.training.train_state": ("sonde.training.train_state",),
    "flax.traverse_util": ("sonde.traverse_util",),
}
_FACES = ("flax.nnx", "flax.linen")
_MISSING: Any = object()


class alias:
    """Makes imports of `flax.nnx` and `flax.linen` return Sonde's modules.

    A plain call lasts until `off` is called; as a context manager, it lasts until the block ends.

    Example:
        >>> import sonde
        >>> with sonde.alias():
        ...     from flax import linen, nnx
        >>> nnx is sonde.nnx, linen is sonde.linen
        (True, True)
    """

    def __init__(self) -> None:
        self._on = True
        _switch.on()

    def off(self) -> None:
        """Turns the alias off; modules that were imported stay."""
        if self._on:
            self._on = False
            _switch.off()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.off()


class _Around(types.ModuleType):
    """A module of Flax that is not part of nnx or linen: Sonde's names, then Flax's own."""

    def __init__(self, name: str, places: Sequence[str]):
        super().__init__(name, f"Stands for {name} while `sonde.alias` is on.")
        self.__path__ = []
        self.__dict__["_places"] = tuple(places)

    def __getattr__(self, attribute: str) -> Any:
        if attribute == "__version__" and self.__name__ == "flax":
            return _version()
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        for place in self._places:
            found = getattr(importlib.import_module(place), attribute, _MISSING)
            if found is not _MISSING and not isinstance(found, types.ModuleType):
                return found
        below = _switch.module(f"{self.__name__}.{attribute}")
        if below is not None:
            return below
        found = getattr(_switch.real(self.__name__), attribute, _MISSING)
        if found is _MISSING and (self.__name__, attribute) == ("flax", "config"):
            return _flax_flags.OWN
        if found is _MISSING:
            raise AttributeError(f"module {self.__name__!r}, as `sonde.alias` provides it, has no {attribute!r}")
        return found

    def __dir__(self) -> list[str]:
        return sorted({n for place in self._places for n in dir(importlib.import_module(place))})


def _version() -> str:
    try:
        return importlib.metadata.version("flax")
    except importlib.metadata.PackageNotFoundError:
        return ".".join(map(str, FOLLOWED))


def _is_flax(name: str) -> bool:
    return name == "flax" or name.startswith("flax.")


class _Switch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The import hook, and the modules of Flax that it set aside."""

    def __init__(self) -> None:
        self._count = 0
        self._lock = threading.RLock()
        self._real: dict[str, types.ModuleType] = {}
        self._around: dict[str, types.ModuleType] = {}

    def on(self) -> None:
        with self._lock:
            self._count += 1
            if self._count == 1:
                self._real = _take_out()
                sys.meta_path.insert(0, self)
                _introduce(self._real)

    def off(self) -> None:
        with self._lock:
            self._count -= 1
            if self._count == 0:
                sys.meta_path.remove(self)
                _take_out()
                sys.modules.update(self._real)
                self._real = {}

    def real(self, name: str) -> types.ModuleType | None:
        """A module of Flax itself; None if there is none of that name, or Flax is not installed."""
        with self._lock:
            if _file_of_flax(name) is None:
                return None
            if self._count == 0:
                return importlib.import_module(name)
            if name not in self._real:
                ours = _take_out()
                sys.modules.update(self._real)
                sys.meta_path.remove(self)
                try:
                    importlib.import_module(name)
                finally:
                    sys.meta_path.insert(0, self)
                    self._real = _take_out()
                    sys.modules.update(ours)
                _introduce(self._real)
            return self._real.get(name)

    def module(self, name: str) -> types.ModuleType | None:
        """The module that `name` means while the alias is on; None if there is no such module.

        Code may keep such a module and ask for its submodules later, when the alias is off.
        """
        if name.startswith(_FACES):
            return _of_sonde(name)
        if name not in self._around:
            if name not in _AROUND and _file_of_flax(name) is None:
                return None
            self._around[name] = _Around(name, _AROUND.get(name, ()))
        return self._around[name]

    # ------------------------------------------------------------------------------------------------ importing

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Finds the modules of Flax."""
        if not _is_flax(fullname):
            return None
        if self.module(fullname) is None:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> types.ModuleType | None:
        """An empty module, for the import system to mark."""
        return types.ModuleType(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Replaces the empty module with the one that the name means."""
        found = self.module(module.__name__)
        assert found is not None
        if isinstance(found, _Around):
            found.__spec__ = module.__spec__
        sys.modules[module.__name__] = found


def _introduce(real: dict[str, types.ModuleType]) -> None:
    """Connects Sonde with the modules of Flax that the alias has set aside: types to serialize, and flags."""
    if "flax.configurations" in real:
        _flax_flags.use(real["flax.configurations"].config)
    if "flax.serialization" in real:
        serialization.put_aside(real["flax.serialization"])


def _of_sonde(name: str) -> types.ModuleType | None:
    ours = f"sonde{name[len('flax') :]}"
    try:
        return importlib.import_module(ours)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{ours}.".startswith(f"{error.name}."):
            return None
        raise


def _take_out() -> dict[str, types.ModuleType]:
    names = [name for name in sys.modules if _is_flax(name)]
    return {name: sys.modules.pop(name) for name in names}


def _file_of_flax(name: str) -> ModuleSpec | None:
    """Where a module of Flax is on disk, without importing anything; None if it is not there."""
    spec: ModuleSpec | None = None
    parts = name.split(".")
    for n in range(1, len(parts) + 1):
        where = None if spec is None else spec.submodule_search_locations
        if n > 1 and where is None:
            return None
        spec = PathFinder.find_spec(".".join(parts[:n]), where)
        if spec is None:
            return None
    return spec


_switch = _Switch()
