"""Models of Equinox: modules are dataclasses, and pytrees that transforms rebuild."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax

from sonde.core import ModuleKind, register_modules
from sonde.inside.libraries.registry import Model, with_methods
from sonde.inside.match_copies import CopiesByArrays
from sonde.inside.value_sites import register_passed_on


def _children(module: Any) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(module):
        value = getattr(module, field.name, None)
        if not field.metadata.get("static", False) and value is not None:
            yield field.name, value


def _arrays(module: Any) -> list[Any]:
    return [x for x in jax.tree.leaves(module) if eqx.is_array(x)]


def _rest(module: Any) -> Any:
    leaves, structure = jax.tree.flatten(module)
    return structure, [None if eqx.is_array(x) else x for x in leaves]


def _is_model(module: Any) -> bool:
    """Whether it is a model; what `equinox.filter_jit` and other transforms return are modules, but not models."""
    return not type(module).__module__.startswith("equinox._")


def _returns(module: Any) -> str | None:
    """Modules whose weights are tied get these when they are taken out of the module that holds them."""
    return "pytree" if isinstance(module, eqx.nn.Shared) else None


register_passed_on(eqx.nn.State)
register_modules(
    eqx.Module, ModuleKind(_children, is_root=_is_model, copies=CopiesByArrays(_arrays, _rest), returns=_returns)
)


def model(thing: Any, methods: frozenset[str]) -> Model | None:
    """The description of a model of this library; None for anything else."""
    return with_methods(thing, methods) if isinstance(thing, eqx.Module) and _is_model(thing) else None
