"""Models of Penzai: layers are dataclasses, and pytrees that transforms rebuild."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
from penzai import pz

from sonde.core import ModuleKind, register_modules
from sonde.inside.libraries.registry import Model, with_methods
from sonde.inside.match_copies import CopiesByArrays
from sonde.inside.value_sites import register_arrays


def _children(layer: Any) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(layer):
        value = getattr(layer, field.name, None)
        if value is not None:
            yield field.name, value


register_arrays(pz.nx.NamedArray, pz.nx.NamedArrayView)
register_modules(pz.nn.Layer, ModuleKind(_children, copies=CopiesByArrays(jax.tree.leaves, jax.tree.structure)))


def model(thing: Any, methods: frozenset[str]) -> Model | None:
    """The description of a model of this library; None for anything else."""
    return with_methods(thing, methods) if isinstance(thing, pz.nn.Layer) else None
