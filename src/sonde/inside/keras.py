"""Models of Keras (with its JAX backend): layers are Python objects; those of a functional model are found by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras

from sonde.core.modules.index import ModuleKind, register_modules
from sonde.inside.libraries import Model, with_methods


def _children(layer: Any) -> Iterator[tuple[Any, Any]]:
    for name, value in vars(layer).items():
        if not name.startswith("_") and isinstance(value, (keras.Layer, list, tuple, dict)):
            yield name, value
    # The layers of Sequential and functional models are not attributes, and those of `MultiHeadAttention` are private
    # ones: both are found here.
    for part in getattr(layer, "_layers", None) or ():
        yield part.name, part


def _child(layer: Any, name: Any) -> Any:
    return dict(_children(layer))[name]


# `stateless_call` calls `call` directly. A `call` inside `__call__` belongs to that call.
register_modules(keras.Layer, ModuleKind(_children, _child, aliases={"call": "__call__"}))


def model(thing: Any, methods: frozenset[str]) -> Model | None:
    """The description of a model of this library; None for anything else."""
    return with_methods(thing, methods) if isinstance(thing, keras.Layer) else None
