"""Models of `flax.nnx`: modules are Python objects, which transforms split and merge."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from flax import nnx
from sonde.core import ModuleKind, module_kind, register_modules, register_no_modules
from sonde.inside.libraries.registry import Model, with_methods
from sonde.inside.match_copies import CopiesByArrays

_ITS_OWN = ("_pytree__", "_object__")  # attributes that the library keeps in a module


def _children(module: Any) -> Iterator[tuple[str, Any]]:
    for name, value in sorted(vars(module).items()):  # as `nnx.merge` orders them: a shared module keeps its first path
        if not name.startswith(_ITS_OWN) and not isinstance(value, nnx.Variable):
            yield name, value


def _arrays(module: Any) -> list[Any]:
    values = [v.get_value() for value in vars(module).values() for v in _variables(value)]
    return [x for x in values if isinstance(x, (jax.Array, np.ndarray))]


def _variables(value: Any) -> Iterator[nnx.Variable]:
    if isinstance(value, nnx.Variable):
        yield value
    elif isinstance(value, nnx.Pytree) and not isinstance(value, (nnx.Rngs, nnx.RngStream)):
        for part in vars(value).values():
            yield from _variables(part)
    elif isinstance(value, (list, tuple, dict, nnx.List, nnx.Dict)):
        for part in value.values() if isinstance(value, (dict, nnx.Dict)) else value:
            yield from _variables(part)


def _rest(module: Any) -> Any:
    plain = {name: value for name, value in _children(module) if module_kind(value) is None}
    return {name: value for name, value in plain.items() if not isinstance(value, (nnx.Rngs, nnx.RngStream))}


def _elements(values: Any) -> Iterator[tuple[Any, Any]]:
    return iter(enumerate(values))


def _child(module: Any, name: Any) -> Any:
    return vars(module)[name]


register_no_modules(nnx.Rngs)
register_no_modules(nnx.RngStream)
register_modules(nnx.Module, ModuleKind(_children, _child, copies=CopiesByArrays(_arrays, _rest)))

register_modules(nnx.List, ModuleKind(_elements, lambda values, i: values[i], is_root=lambda _: False))


def model(thing: Any, methods: frozenset[str]) -> Model | None:
    """The description of a model of this library; None for anything else."""
    return with_methods(thing, methods) if isinstance(thing, nnx.Module) else None
