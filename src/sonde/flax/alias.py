"""`alias`: `flax.nnx` and `flax.linen` mean Sonde, for packages written for Flax.

While it is on, every `import flax...` is handled here. `flax.nnx`, `flax.linen` and everything below them are
Sonde's own modules. The rest (`flax.core`, `flax.struct`, `flax.serialization`, `flax.training`, ...) offers Sonde's
names first; names that Sonde lacks come from Flax, if it is installed.

Sharp edges:

* It only affects imports. A package that was imported before keeps what it imported; one that imports inside its
  functions must be called while the alias is on. If it is turned on at the start of a program and stays on, neither
  matters.
* It changes `sys.modules` for the whole process, all threads included.
* A name that Sonde lacks raises an error at the moment it is asked for; packages may catch it. A name of `flax.core`
  that comes from Flax itself, and setting a name in a module, give an `AliasWarning`. `alias_report` lists them all.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.metadata
import sys
import threading
import types
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any, Self

from sonde.flax import alias_log as _alias_log
from sonde.flax import flags as _flax_flags
from sonde.flax import serialization
from sonde.flax.release import FOLLOWED
from sonde.linen.flax_names.import_paths import PATHS as LINEN_PATHS
from sonde.nnx.flax_names.import_paths import PATHS as NNX_PATHS

_AXES = ("sonde.linen.transforms.axes",)
#: Other modules of Flax, each with the modules of Sonde that provide its names.
_AROUND = {
    "flax": (),
    "flax.core": (
        "sonde.linen.variables.frozen_dict",
        "sonde.linen.sharding.meta",
        "sonde.linen.variables.filters",
        *_AXES,
        "sonde.flax.annotation_types",
    ),
    "flax.core.axes_scan": _AXES,
    "flax.core.lift": (*_AXES, "sonde.flax.annotation_types"),
    "flax.core.scope": ("sonde.linen.variables.filters", "sonde.flax.annotation_types"),
    "flax.core.frozen_dict": ("sonde.linen.variables.frozen_dict",),
    "flax.core.meta": ("sonde.linen.sharding.meta",),
    "flax.errors": ("sonde.errors",),
    "flax.serialization": ("sonde.flax.serialization",),
    "flax.struct": ("sonde.flax.struct",),
    "flax.training": (),
    "flax.training.train_state": ("sonde.flax.training.train_state",),
    "flax.traverse_util": ("sonde.flax.traverse_util",),
    "flax.typing": ("sonde.flax.annotation_types",),
}
#: Names that are other names in Sonde.
_RENAMED = {
    ("flax.errors", "FlaxError"): ("sonde.errors", "SondeError"),
    ("flax.errors", "ImmutableVariableError"): ("sonde.errors", "TraceContextError"),
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


def alias_report() -> _alias_log.AliasReport:
    """What packages have asked of Flax under `alias` so far, and what they got.

    Names of `flax.nnx` and `flax.linen` that Sonde has are not listed one by one. Names that the installed Flax lacks,
    too, are left out: packages probe for names of other releases.

    Returns:
        A tuple of asks, each with `name`, `answer` ("from Sonde", "from Flax", "missing", or "set" for a name that the
        package set) and `where`, the file and line. Printed, it is a list by answers.

    Example:
        >>> import sonde
        >>> with sonde.alias():
        ...     from flax import linen
        ...     found = hasattr(linen.module, "_freeze_attr")
        >>> [ask.answer for ask in sonde.alias_report() if ask.name == "flax.linen.module._freeze_attr"]
        ['missing']
    """
    asks = _alias_log.report()
    return _alias_log.AliasReport(ask for ask in asks if ask.answer != "missing" or _flax_has(ask.name))


def _flax_has(name: str) -> bool:
    """Whether Flax has a module or a name in a module; True if Flax is not installed."""
    above, _, attribute = name.rpartition(".")
    if _file_of_flax("flax") is None or _file_of_flax(name) is not None:
        return True
    with warnings.catch_warnings(action="ignore"):  # of deprecated names
        return hasattr(_switch.real(above), attribute)


class _Watched(types.ModuleType):
    """A module that notices when a package asks for a name that it lacks, or sets one: Sonde would not see that."""

    def __getattr__(self, attribute: str) -> Any:
        name = self._in_flax(attribute)
        # `from flax.linen import partitioning` asks for an attribute before it imports the module.
        if not attribute.startswith("__") and PathFinder.find_spec(attribute, getattr(self, "__path__", None)) is None:
            _alias_log.note(name, "missing")
        raise AttributeError(f"{name} does not exist: module {self.__name__!r} has no attribute {attribute!r}")

    def __reduce__(self) -> Any:
        # For cloudpickle, which pickles the globals of functions, and knows how only for plain modules.
        return importlib.import_module, (self.__name__,)

    def _in_flax(self, attribute: str) -> str:
        own = self.__name__
        return f"flax{own[len('sonde') :]}.{attribute}" if own.startswith("sonde") else f"{own}.{attribute}"

    def __setattr__(self, attribute: str, value: Any) -> None:
        super().__setattr__(attribute, value)
        if not attribute.startswith("__") and not isinstance(value, types.ModuleType):
            _alias_log.note(
                self._in_flax(attribute),
                "set",
                "was set under sonde.alias. Code that looks the name up here gets the new value; Sonde's own code, "
                "unlike Flax's, does not look here.",
            )


class _Around(_Watched):
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
        if (self.__name__, attribute) in _RENAMED:
            place, name = _RENAMED[self.__name__, attribute]
            return getattr(importlib.import_module(place), name)
        for place in self._places:
            value = getattr(importlib.import_module(place), attribute, _MISSING)
            if value is not _MISSING and not isinstance(value, types.ModuleType):
                return value
        below = _switch.module(f"{self.__name__}.{attribute}")
        if below is not None:
            return below
        value = getattr(_switch.real(self.__name__), attribute, _MISSING)
        if (self.__name__, attribute) == ("flax", "config"):  # Sonde reads it, whether it is Flax's or not
            return _flax_flags.OWN if value is _MISSING else value
        name = f"{self.__name__}.{attribute}"
        if value is _MISSING:
            _alias_log.note(name, "missing")
            raise AttributeError(f"module {self.__name__!r}, as `sonde.alias` provides it, has no {attribute!r}")
        _alias_log.note(name, "from Flax", _NOT_OURS if f"{self.__name__}.".startswith("flax.core.") else None)
        return value

    def __dir__(self) -> list[str]:
        return sorted({n for place in self._places for n in dir(importlib.import_module(place))})


_NOT_OURS = "Sonde has no such name, so this is Flax's own under sonde.alias. Modules of Sonde do not use it."


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
                _watch(_Watched)

    def off(self) -> None:
        with self._lock:
            self._count -= 1
            if self._count == 0:
                sys.meta_path.remove(self)
                _take_out()
                sys.modules.update(self._real)
                self._real = {}
                _watch(types.ModuleType)

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

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        """Finds the modules of Flax."""
        if not _is_flax(fullname):
            return None
        if self.module(fullname) is None:
            _alias_log.note(fullname, "missing")
            return None
        _alias_log.note(fullname, "from Sonde" if fullname in _AROUND or fullname.startswith(_FACES) else "from Flax")
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> types.ModuleType | None:
        """An empty module, for the import system to mark."""
        return types.ModuleType(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Replaces the empty module with the one that the name means."""
        standing_in = self.module(module.__name__)
        assert standing_in is not None
        if isinstance(standing_in, _Around):
            standing_in.__spec__ = module.__spec__
        sys.modules[module.__name__] = standing_in


def _introduce(real: dict[str, types.ModuleType]) -> None:
    """Connects Sonde with the modules of Flax that the alias has set aside: types to serialize, and flags."""
    if "flax.configurations" in real:
        _flax_flags.use(real["flax.configurations"].config)
    if "flax.serialization" in real:
        serialization.put_aside(real["flax.serialization"])


def _watch(kind: type[types.ModuleType]) -> None:
    """Turns watching the modules that stand for files of `flax.nnx` and `flax.linen` on or off."""
    for face in _FACES:
        ours = importlib.import_module(f"sonde{face[len('flax') :]}")
        ours.__class__ = kind
        for path in NNX_PATHS if face == "flax.nnx" else LINEN_PATHS:
            sys.modules[f"{ours.__name__}.{path}"].__class__ = kind


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
