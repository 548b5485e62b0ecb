"""Models of Haiku, by its own `intercept_methods`. Modules exist only inside: a transformed function is the model."""

from __future__ import annotations

import contextlib
from typing import Any

import haiku as hk

from sonde.inside.libraries import Model
from sonde.inside.named_paths import run_named, scope_of

_TRANSFORMED = (hk.Transformed, hk.TransformedWithState, hk.MultiTransformed, hk.MultiTransformedWithState)


def model(thing: Any, methods: frozenset[str]) -> Model | None:
    """What to look at in a model, if it is one of this library."""
    del methods
    is_class = isinstance(thing, type) and issubclass(thing, hk.Module)
    if is_class and thing is not hk.Module:
        return None  # its variables are asked for
    return Model(hooks=frozenset({_intercepting})) if is_class or isinstance(thing, _TRANSFORMED) else None


def _intercepting() -> contextlib.AbstractContextManager[Any]:
    return hk.intercept_methods(_intercept)


def _intercept(method: Any, args: Any, kwargs: Any, context: hk.MethodContext) -> Any:
    module: Any = context.module
    if context.method_name == "__init__":
        return method(*args, **kwargs)
    # `~` stands for a constructor in Haiku's names, `~name` for another method than `__call__`.
    path = tuple(name for name in module.module_name.split("/") if not name.startswith("~"))
    return run_named(scope_of(path, None), module, context.method_name, method, args, kwargs, context.orig_method)
