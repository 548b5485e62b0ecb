"""Models of Keras (with its JAX backend): layers are Python objects; those of a functional model are found by name."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterator
from typing import Any

import keras

from sonde.core import ModuleKind, register_modules
from sonde.inside.libraries.registry import Model, with_methods


def _children(layer: Any) -> Iterator[tuple[Any, Any]]:
    for name, value in vars(layer).items():
        is_private = name.startswith("_")
        if isinstance(value, keras.Layer):
            if not is_private or (name != "_functional" and _has_automatic_name(value)):
                yield name, value
        elif isinstance(value, (list, tuple, dict)) and (not is_private or _is_assigned(name, value)):
            yield name, value
    # The layers of Sequential and functional models are not attributes, and those of `MultiHeadAttention` are private
    # ones with names: both are found here.
    for part in getattr(layer, "_layers", None) or ():
        yield part.name, part


def _has_automatic_name(layer: Any) -> bool:
    """Whether nobody named a layer: its name is that of its class, with the number of layers before it."""
    return re.sub(r"_\d+$", "", layer.name).replace("_", "") == type(layer).__name__.lower()


def _is_assigned(name: str, value: Any) -> bool:
    """Whether a private list, tuple or dict was assigned to a layer, and is not one that Keras keeps in it."""
    return name != "_layers" and (isinstance(value, tuple) or type(value) not in (list, dict, collections.defaultdict))


def _is_part(layer: Any, of: Any) -> bool:
    """Whether a layer is how a `Sequential` runs."""
    return getattr(of, "_functional", None) is layer


def _child(layer: Any, name: Any) -> Any:
    return dict(_children(layer))[name]


# `stateless_call` calls `call` directly. A `call` inside `__call__` belongs to that call.
register_modules(keras.Layer, ModuleKind(_children, _child, aliases={"call": "__call__"}, is_part=_is_part))


def model(thing: Any, methods: frozenset[str]) -> Model | None:
    """The description of a model of this library; None for anything else."""
    return with_methods(thing, methods) if isinstance(thing, keras.Layer) else None
