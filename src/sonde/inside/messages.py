"""Texts of errors: what was found in place of code, and what to name instead."""

from __future__ import annotations

import difflib
import reprlib
import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any

import jax

from sonde.core import nearest as nearest_names

_short = reprlib.Repr()
_short.maxother = _short.maxstring = 60


def no_function_in(thing: Any) -> str:
    """The error for an `inside=` argument that has no Python function."""
    shown = " ".join(_short.repr(thing).split())
    return (
        "inside= takes functions, classes, Python modules, their names and models; "
        f"got {shown} of type {type(thing).__name__}, which has no Python function{_instead(thing)}"
    )


def _instead(thing: Any) -> str:
    if isinstance(thing, (jax.stages.Lowered, jax.stages.Compiled, jax.stages.Traced)):
        return "; name the function that it was made from"
    functions = [name for name in getattr(thing, "_fields", ()) if isinstance(getattr(thing, name), types.FunctionType)]
    if functions:
        return f"; name those that it has: inside=[{', '.join(f'x.{name}' for name in functions)}], or their package"
    if callable(thing):
        return "; name the functions that call it"
    if isinstance(thing, Mapping) and jax.tree.leaves(thing):
        return "; name the model that these are the values of, or the functions that use them"
    return ""


def no_module(name: str, asked: str) -> str:
    """The error for the name of a module that there is not."""
    text = f"inside={asked!r}: there is no module {name!r}"
    if "/" in name or "\\" in name:
        return f"{text}; write packages with dots, 'package.module', and the path of a file with its ending, 'file.py'"
    bound = vars(sys.modules["__main__"]).get(name)
    if isinstance(bound, types.ModuleType):
        return f"{text}; write {bound.__name__!r}, or inside={name} without quotes"
    near = difflib.get_close_matches(name, {m for m in sys.modules if not m.startswith("_")}, n=3, cutoff=0.7)
    if near:
        return f"{text}; nearest: {', '.join(map(repr, near))}"
    if bound is not None:
        return f"{text}; write inside={name} without quotes"
    return f"{text}; pass the function, class or model itself, or the name of a package that can be imported"


def nearest(name: str, names: Iterable[str]) -> str:
    """The names that may be meant by a name."""
    return ", ".join(map(repr, nearest_names(name, names))) or "nothing"
