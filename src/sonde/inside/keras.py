"""Models of Keras (with its JAX backend): layers are Python objects; those of a functional model are known by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras

from sonde.core.module_index import ModuleKind, register_modules
from sonde.inside.libraries import Model, with_methods


def _children(layer: Any) -> Iterator[tuple[Any, Any]]:
    attributes = [(name, value) for name, value in vars(layer).items() if not name.startswith("_")]
    for name, value in attributes:
        if isinstance(value, keras.Layer):
            yield name, value
        elif isinstance(value, (list, tuple)):
            yield name, list(value)
        elif isinstance(value, dict):
            yield name, dict(value)
    # What Sequential and functional models are made of is in no attribute of theirs; other models list attributes here.
    for part in getattr(layer, "layers", None) or ():
        yield part.name, part


def _child(layer: Any, name: Any) -> Any:
    return dict(_children(layer))[name]


# `stateless_call` calls `call` by itself. A `call` that `__call__` runs is one call with it.
register_modules(keras.Layer, ModuleKind(_children, _child, aliases={"call": "__call__"}))


def model(thing: Any, methods: frozenset[str]) -> Model | None:
    """What to look at in a model, if it is one of this library."""
    return with_methods(thing, methods) if isinstance(thing, keras.Layer) else None
