"""Models of `flax.linen`, observed by its own `intercept_methods`; a module knows its path."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import flax.linen as nn

from sonde.core import name_of_method, register_told_apart
from sonde.inside.libraries.named_paths import run_named, scope_of
from sonde.inside.libraries.registry import Model


def model(thing: Any, methods: frozenset[str]) -> Model | None:
    """The description of a model of this library; None for anything else."""
    del methods
    return Model(hooks=frozenset({_intercepting})) if isinstance(thing, nn.Module) else None


def _intercepting() -> contextlib.AbstractContextManager[Any]:
    return nn.intercept_methods(_intercept)


def _intercept(method: Any, args: Sequence[Any], kwargs: dict[str, Any], context: Any) -> Any:
    module = context.module
    if module.scope is None:
        return method(*args, **kwargs)
    function = getattr(context.orig_method, "func", None)
    name = name_of_method(
        type(module), context.method_name, lambda value: getattr(value, "__wrapped__", ...) is function
    )
    path = tuple(map(str, module.path))
    original = getattr(type(module), name, None)
    # A lifted transform makes a new root, at the path that it lifts.
    root = module.scope.root if not module.scope.root.path else None
    return run_named(scope_of(path, root), module, name, method, args, kwargs, original, _intercepting)


def _paths_given(args: Sequence[Any]) -> Any:
    """The paths of the modules in a call of linen's jit, which has one trace for all that are alike."""
    parts = [part for arg in args for part in (arg if type(arg) is tuple else (arg,))]
    modules = [module for part in parts if isinstance(module := getattr(part, "module", None), nn.Module)]
    return tuple([module.path for module in modules if module.scope is not None]) or None


register_told_apart(_paths_given)
