"""The flags of `flax.config`, for programs that set them; both faces read them here.

Where Flax is loaded its own `flax.config` counts, also while `sonde.alias` has set Flax aside. Otherwise `OWN` counts,
which reads the same environment variables; `flax.config` is that object under the alias if Flax is not installed.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

#: Flax's flags and their defaults. `flax_max_repr_depth` is a number, the others are truth values.
DEFAULTS: dict[str, bool | None] = {
    "flax_filter_frames": True,
    "flax_profile": True,
    "flax_use_orbax_checkpointing": True,
    "flax_preserve_adopted_names": False,
    "flax_return_frozendict": False,
    "flax_fix_rng_separator": False,
    "flax_use_flaxlib": False,
    "flax_array_ref": False,
    "flax_pytree_module": True,
    "flax_max_repr_depth": None,
    "flax_always_shard_variable": True,
    "flax_hijax_variable": False,
    "nnx_graph_mode": True,
    "nnx_graph_updates": True,
    "nnx_sow_capture_noop": False,
}
_YES = ("y", "yes", "t", "true", "on", "1")
_NO = ("n", "no", "f", "false", "off", "0")


class Config:
    """Flags as attributes; their values come from the environment, and `update` changes them."""

    def __init__(self) -> None:
        self._values = {name: _from_environment(name.upper(), default) for name, default in DEFAULTS.items()}

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_values", {})
        if name not in values:
            raise AttributeError(f"Flax has no flag {name!r}; it has {', '.join(values)}")
        return values[name]

    def update(self, name: str, value: bool | int | None, /) -> None:
        """Sets a flag.

        Raises:
            LookupError: There is no such flag.
        """
        name = getattr(name, "name", name)
        if name not in self._values:
            raise LookupError(f"Flax has no flag {name!r}; it has {', '.join(self._values)}")
        self._values[name] = value

    @contextlib.contextmanager
    def temp_flip_flag(self, var_name: str, var_value: bool | int | None) -> Iterator[None]:
        """Sets a flag for a block; its name is given without `flax_`."""
        name = f"flax_{var_name}"
        before = getattr(self, name)
        self.update(name, var_value)
        try:
            yield
        finally:
            self.update(name, before)

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={value}' for name, value in self._values.items())})"


def _from_environment(variable: str, default: bool | None) -> bool | int | None:
    text = os.environ.get(variable)
    if text is None:
        return default
    text = text.strip().lower()
    if default is None:
        if text.isdigit():
            return int(text)
        raise ValueError(f"The environment variable {variable} is '{text}'; it must be a number.")
    if text not in (*_YES, *_NO):
        raise ValueError(f"The environment variable {variable} is '{text}'; it must be 'true' or 'false'.")
    return text in _YES


OWN = Config()
_MISSING: Any = object()
_of_flax: Any = None


def use(config: object) -> None:
    """Reads flags from the `config` of Flax, which was loaded."""
    global _of_flax
    _of_flax = config


def flag(name: str) -> Any:
    """The value of a flag.

    Args:
        name: Its name in `flax.config`, such as `"flax_return_frozendict"`.

    Example:
        >>> flag("flax_preserve_adopted_names")
        False
    """
    if _of_flax is None and (module := sys.modules.get("flax.configurations")) is not None:
        # Not `getattr`: while `sonde.alias` is on, the module of this name would load Flax.
        use(vars(module).get("config"))
    if _of_flax is not None:
        value = _of_flax._values.get(name, _MISSING)
        if value is not _MISSING:
            return value
    return OWN._values[name]  # also a flag that is newer than the Flax that is loaded
