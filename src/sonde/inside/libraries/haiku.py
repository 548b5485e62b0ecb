"""Models of Haiku, observed by its own `intercept_methods`. The model is a transformed function."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import haiku as hk

from sonde.inside.libraries.named_paths import run_named, scope_of
from sonde.inside.libraries.registry import Model

_TRANSFORMED = (hk.Transformed, hk.TransformedWithState, hk.MultiTransformed, hk.MultiTransformedWithState)


def model(thing: Any, methods: frozenset[str]) -> Model | None:
    """The description of a model of this library; None for anything else."""
    del methods
    is_class = isinstance(thing, type) and issubclass(thing, hk.Module)
    if is_class and thing is not hk.Module:
        return None  # a plain function: its variables are requested
    return Model(hooks=frozenset({_intercepting})) if is_class or isinstance(thing, _TRANSFORMED) else None


def _intercepting() -> contextlib.AbstractContextManager[Any]:
    return hk.intercept_methods(_intercept)


def _intercept(method: Any, args: Sequence[Any], kwargs: dict[str, Any], context: hk.MethodContext) -> Any:
    module: Any = context.module
    if context.method_name == "__init__":
        return method(*args, **kwargs)
    # In Haiku's names, `~` means a constructor and `~name` a method other than `__call__`.
    path = tuple(name for name in module.module_name.split("/") if not name.startswith("~"))
    original = getattr(type(module), context.method_name, None)
    return run_named(scope_of(path, None), module, context.method_name, method, args, kwargs, original, _intercepting)
