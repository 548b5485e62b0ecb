"""The libraries whose models can be looked into. None is imported unless the program has imported it."""

from __future__ import annotations

import dataclasses
import importlib
import sys
import types
from collections.abc import Callable
from typing import Any

from sonde.core.modules.index import module_kind
from sonde.inside.calls import methods_in

# For a module that a program has imported, the file here that deals with its models.
_ADAPTERS = {
    "flax.nnx": "flax_nnx",
    "flax.linen": "flax_linen",
    "equinox": "equinox",
    "haiku": "haiku",
    "penzai": "penzai",
    "keras": "keras",
}
# Libraries with their own array types, which may be variables of functions.
_WITH_ARRAYS = {"penzai"}
# Functions that compare arrays by identity, also those that marked functions elsewhere gave them.
_COMPARING = {"equinox": ("tree_at",)}


@dataclasses.dataclass(frozen=True)
class Model:
    """How to observe the calls of a model's modules.

    Attributes:
        calls: The functions that are their methods.
        hooks: Functions that return a context manager, entered while a capture runs.
    """

    calls: frozenset[types.FunctionType] = frozenset()
    hooks: frozenset[Callable[[], Any]] = frozenset()


def comparing_functions() -> list[types.FunctionType]:
    """The functions of imported libraries that must know which arrays are one object in the program without marks."""
    found = [
        getattr(sys.modules[name], each, None)
        for name, own in _COMPARING.items()
        if name in sys.modules
        for each in own
    ]
    return [f for f in found if isinstance(f, types.FunctionType)]


def with_methods(model: Any, methods: frozenset[str]) -> Model:
    """A model whose methods are functions of its classes."""
    return Model(calls=methods_in(model, methods))


def as_model(thing: Any, methods: frozenset[str]) -> Model | None:
    """How to observe a model; None if the thing is not a model of a known library."""
    is_code = isinstance(thing, (str, types.FunctionType, types.ModuleType))
    for name, file in _ADAPTERS.items():
        if name in sys.modules and (not is_code or name in _WITH_ARRAYS):
            adapter = importlib.import_module(f"sonde.inside.{file}")
            found = None if is_code else adapter.model(thing, methods)
            if found is not None:
                return found
    if is_code:
        return None
    # Sonde's own Modules learn from the engine which calls are wanted.
    linen: Any = sys.modules.get("sonde.linen")
    is_ours = module_kind(thing) is not None or (linen is not None and isinstance(thing, linen.Module))
    return Model() if is_ours else None
