"""The libraries whose models can be looked into. None is imported unless the program has imported it."""

from __future__ import annotations

import dataclasses
import importlib
import sys
import types
from collections.abc import Callable
from typing import Any

from sonde.inside.method_hooks import methods_in
from sonde.inside.unwrap import with_wrapped

# For a module that a program has imported, the file here that deals with its models.
_ADAPTERS = {
    "flax.nnx": "flax_nnx",
    "flax.linen": "flax_linen",
    "equinox": "equinox",
    "haiku": "haiku",
    "penzai": "penzai",
    "keras": "keras",
}
# The classes of Sonde's own modules, by face.
_OWN = (("nnx", "Module"), ("nnx", "List"), ("nnx", "Dict"), ("linen", "Module"))
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
    functions = [
        getattr(sys.modules[name], each, None)
        for name, own in _COMPARING.items()
        if name in sys.modules
        for each in own
    ]
    return [f for f in functions if isinstance(f, types.FunctionType)]


def with_methods(model: Any, methods: frozenset[str]) -> Model:
    """A model whose methods are functions of its classes."""
    return Model(calls=methods_in(model, methods))


def as_model(thing: Any, methods: frozenset[str]) -> tuple[Any, Model] | None:
    """A model, and how to observe it; None if the thing is not a model of a known library.

    The model may be wrapped: `jax.jit(model)`, `equinox.filter_vmap(model)`.
    """
    for wrapped in with_wrapped(thing):
        description = _model(wrapped, methods)
        if description is not None:
            return wrapped, description
    return None


def _model(thing: Any, methods: frozenset[str]) -> Model | None:
    is_code = isinstance(thing, (str, types.FunctionType, types.ModuleType))
    for name, file in _ADAPTERS.items():
        if name in sys.modules and (not is_code or name in _WITH_ARRAYS):
            adapter = importlib.import_module(f"sonde.inside.libraries.{file}")
            description = None if is_code else adapter.model(thing, methods)
            if description is not None:
                return description
    # Sonde's own Modules learn from the engine which calls are wanted.
    own = [getattr(sys.modules.get(f"sonde.{face}"), name, None) for face, name in _OWN]
    return Model() if isinstance(thing, tuple(cls for cls in own if cls is not None)) else None
