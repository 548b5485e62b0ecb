"""Models of `flax.nnx`: modules are Python objects, which transforms split and merge."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flax import nnx

from sonde.core.module_index import ModuleKind, register_modules, register_no_modules
from sonde.inside.copies import origin_of_copy
from sonde.inside.libraries import Model, with_methods


def _children(module: Any) -> Iterator[tuple[str, Any]]:
    for name, value in vars(module).items():
        if not name.startswith("_") and not isinstance(value, nnx.Variable):
            yield name, value


def _arrays(module: Any) -> list[Any]:
    return [x.get_value() for x in vars(module).values() if isinstance(x, nnx.Variable)]


def _elements(values: Any) -> Iterator[tuple[Any, Any]]:
    return iter(enumerate(values))


def _child(module: Any, name: Any) -> Any:
    return vars(module)[name]


register_no_modules(nnx.Rngs)
register_no_modules(nnx.RngStream)
register_modules(nnx.Module, ModuleKind(_children, _child, origin=origin_of_copy, arrays=_arrays))

register_modules(nnx.List, ModuleKind(_elements, lambda values, i: values[i], is_root=lambda _: False))


def model(thing: Any, methods: frozenset[str]) -> Model | None:
    """What to look at in a model, if it is one of this library."""
    return with_methods(thing, methods) if isinstance(thing, nnx.Module) else None
