"""How a module looks as text: its fields, and the modules inside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sonde.linen.modules.module import Module


def short(value: object) -> str:
    """A value as errors show it: its text if that is short, else its class."""
    text = repr(value)
    return text if len(text) < 80 and "\n" not in text else type(value).__name__


def description(module: Module, indent: int = 4) -> str:
    """What `repr` of a module returns."""
    pad = " " * indent

    def block(title: str, entries: Iterable[tuple[str, Any]]) -> list[str]:
        lines = [f"{name} = {_value_text(value)}".replace("\n", f"\n{pad}") for name, value in entries]
        return [f"{pad}# {title}", *(pad + line for line in lines)] if lines else []

    fields = [f for f in dataclasses.fields(module) if f.repr and f.init and f.name not in ("parent", "name")]
    state = module.__dict__.get("_state")
    children = state.children if state is not None else {}
    field_names = {f.name for f in fields}
    body = [
        *block("attributes", ((f.name, getattr(module, f.name)) for f in fields)),
        *block("children", ((k, v) for k, v in children.items() if k not in field_names)),
    ]
    name = type(module).__name__
    return "\n".join([f"{name}(", *body, ")"]) if body else f"{name}()"


def _value_text(value: object) -> str:
    if callable(value) and getattr(value, "__name__", None):
        return value.__name__
    return repr(value)
