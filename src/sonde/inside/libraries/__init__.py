"""Other libraries: how their modules are observed, and what must be changed in them while a capture runs.

One file for each. None of the libraries is imported, and none of the files is loaded, before the program has imported
the library.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from sonde import _jax

# For a module of a library, the file here that changes it while captures run, also those without `inside=`.
_CHANGED = {
    "equinox.internal._noinline": "equinox_noinline",
    "flax.core.axes_scan": "flax_scan",
    "keras.src.backend.common.masking": "keras_masks",
}


def add_changes(changes: _jax.InPlace) -> None:
    """Adds the changes to libraries to those that sessions make, as soon as each library is imported."""
    for module, file in _CHANGED.items():
        _jax.when_loaded(module, lambda loaded, file=file: changes.add(*_changes_in(file, loaded)))


def _changes_in(file: str, loaded: ModuleType) -> tuple[_jax.Change, ...]:
    return tuple(importlib.import_module(f"{__name__}.{file}").changes(loaded))
