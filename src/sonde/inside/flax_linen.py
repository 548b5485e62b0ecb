"""Models of `flax.linen`, by its own `intercept_methods`; a module knows its path."""

from __future__ import annotations

import contextlib
from types import FrameType
from typing import Any

import flax.linen as nn

from sonde.inside.libraries import Model
from sonde.inside.named_paths import run_named, scope_of


def model(thing: Any, methods: frozenset[str]) -> Model | None:
    """What to look at in a model, if it is one of this library."""
    del methods
    return Model(hooks=frozenset({_intercepting})) if isinstance(thing, nn.Module) else None


def _intercepting() -> contextlib.AbstractContextManager[Any]:
    return nn.intercept_methods(_intercept)


def _intercept(method: Any, args: Any, kwargs: Any, context: Any) -> Any:
    module, name = context.module, context.method_name
    if module.scope is None:
        return method(*args, **kwargs)
    path = tuple(map(str, module.path))
    original = getattr(type(module), name, None)
    return run_named(scope_of(path, module.scope.root, _path_around), module, name, method, args, kwargs, original)


def _path_around(frame: FrameType | None) -> Any:
    """The path of the nearest module that is a variable of a running function: linen's jit traces for many at once."""
    while frame is not None:
        for value in list(frame.f_locals.values()):
            if isinstance(value, nn.Module) and value.scope is not None:
                return value.path
        frame = frame.f_back
    return None
