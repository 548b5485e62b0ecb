"""Modules of nnx and of linen as submodules of a `bridge.Module`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sonde import linen, nnx
from sonde.flax.bridge.context import Scope, current_context
from sonde.flax.bridge.module import AttrPriority, Module, binding, next_name
from sonde.flax.bridge.to_nnx import ToNNX, initializing


def nnx_in_bridge_mdl(factory: Callable[[nnx.Rngs], Any], name: str | None = None) -> Any:
    """An nnx Module as a submodule of the running module.

    Args:
        factory: Makes it from random streams.
        name: The name; by default the class name and a number.

    Returns:
        The Module, with the variables that the run has for it.
    """
    parent, scope = _running("nnx_in_bridge_mdl")
    streams = scope.rngs
    if not scope.initializing and "default" not in streams:
        streams = nnx.Rngs(default=0, **dict(streams.items()))
    module = factory(streams)
    place(parent, module, type(module).__name__, name)
    return module


def linen_in_bridge_mdl(linen_module: linen.Module, name: str | None = None) -> Any:
    """A linen module as a submodule of the running module; see `nnx_in_bridge_mdl`."""
    parent, scope = _running("linen_in_bridge_mdl")
    module = _Linen(linen_module, scope)
    place(parent, module, type(linen_module).__name__, name)
    return module


class _Linen(ToNNX):
    """A linen module that is initialized when the run is an `init`."""

    def __init__(self, module: linen.Module, scope: Scope):
        super().__init__(module, rngs=scope.rngs)
        self.to_nnx__scope = nnx.data(scope)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        scope = self.to_nnx__scope
        if scope.initializing:
            with initializing():
                return super().__call__(*args, **kwargs)
        return super().__call__(*args, mutable=scope.mutable, **kwargs)


def _running(verb: str) -> tuple[Any, Scope]:
    entry = current_context()
    if entry is None or entry.module.scope is None:
        raise ValueError(f"{verb} was called outside a running bridge.Module: call it in `setup` or a method.")
    return entry.module, entry.module.scope


def place(parent: Module, module: nnx.Module, base: str, name: str | None) -> None:
    """Makes a module a submodule, and gives it its pending variables."""
    entry = current_context()
    assert entry is not None
    if name is None and not entry.in_compact:
        return  # in `setup` the attribute names it
    name = name or next_name(entry, base)
    held = binding(parent)
    held.priorities.setdefault(name, AttrPriority.INIT_PARENT)
    setattr(parent, name, module)
