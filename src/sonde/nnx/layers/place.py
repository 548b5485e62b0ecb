"""The path of a layer in its model, for errors.

A layer does not store its path. When its inputs do not fit, the functions that are running are searched for the model
that the layer belongs to. That costs nothing until an error is raised.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar, cast

from sonde.errors import LayerInputError
from sonde.nnx.modules.module import Module, iter_modules

F = TypeVar("F", bound=Callable[..., Any])


def names_its_place(method: F) -> F:
    """Decorates a method of a layer: a `LayerInputError` from inside names the layer's class and path."""

    @functools.wraps(method)
    def wrapper(self: Module, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except LayerInputError as error:
            if error.place is None:
                error.place = place_of(self, sys._getframe(1))
            raise

    return cast(F, wrapper)


def place_of(layer: Module, frame: FrameType | None) -> str:
    """The layer's class, and its path from the outermost running Module that contains it.

    Args:
        layer: The layer.
        frame: The function that called it.

    Returns:
        Text such as `Linear at decoder/head`, or `Linear` when no other Module contains it.
    """
    path: tuple[Any, ...] = ()
    while frame is not None:
        for value in list(frame.f_locals.values()):
            if isinstance(value, Module) and value is not layer:
                layer_path = next((p for p, m in iter_modules(value, graph=True) if m is layer), ())
                # The longest path is that from the outermost model that runs.
                path = max(path, layer_path, key=len)
        frame = frame.f_back
    name = type(layer).__name__
    return f"{name} at {'/'.join(str(part) for part in path)}" if path else name
