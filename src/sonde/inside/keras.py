"""Models of Keras (with its JAX backend): layers are Python objects; those of a functional model are found by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
from keras.src.backend.common import masking

from sonde import _jax
from sonde.core.context import look
from sonde.core.modules.index import ModuleKind, register_modules
from sonde.inside.identity import same_as
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
    # The layers of Sequential and functional models are not attributes; other models list their attributes here.
    for part in getattr(layer, "layers", None) or ():
        yield part.name, part


def _child(layer: Any, name: Any) -> Any:
    return dict(_children(layer))[name]


# `stateless_call` calls `call` directly. A `call` inside `__call__` belongs to that call.
register_modules(keras.Layer, ModuleKind(_children, _child, aliases={"call": "__call__"}))


def model(thing: Any, methods: frozenset[str]) -> Model | None:
    """The description of a model of this library; None for anything else."""
    return with_methods(thing, methods) if isinstance(thing, keras.Layer) else None


# Keras keeps the mask of an array by the identity of the array. All that stand for one array have its mask.
_get_mask, _set_mask = masking.get_tensor_attr, masking.set_tensor_attr


def _mask_of(array: Any, name: str) -> Any:
    with look(None):
        return next((mask for x in same_as(array) if (mask := _get_mask(x, name)) is not None), None)


def _give_mask(array: Any, name: str, mask: Any) -> None:
    with look(None):  # marked, Keras's function would be given other objects
        for x in same_as(array):
            _set_mask(x, name, mask)


masks = _jax.InPlace(
    _jax.Change(masking, "get_tensor_attr", _mask_of), _jax.Change(masking, "set_tensor_attr", _give_mask)
)


def hook() -> _jax.InPlace:
    """What is in place while a capture looks into anything."""
    return masks
