"""Modules that are nowhere in the model: their names."""

from __future__ import annotations

import dataclasses
import os
import sys
import weakref
from typing import Any

import jax

_SONDE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_JAX = os.path.dirname(os.path.abspath(jax.__file__)) + os.sep


class Strangers:
    """Modules that are nowhere in the model, named after their classes: `Linear`, `Linear_1`.

    One that takes the place of another which is gone, as in a loop that makes a module and calls it, has its name.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: list[tuple[Any, Any, str]] = []

    def name(self, module: Any) -> str:
        """The name of a module."""
        caller = _where(4)  # some of the functions belong to the library
        cls, n = type(module).__name__, 0
        for i, (ref, where, name) in enumerate(self._known):
            known = ref()
            if known is module:
                return name
            if name == cls or name.startswith(f"{cls}_"):
                n += 1
                if known is None and where == caller:
                    self._known[i] = weakref.ref(module), caller, name
                    return name
        name = f"{cls}_{n}" if n else cls
        self._known.append((weakref.ref(module), caller, name))
        return name

    def name_of(self, inner: InnerStranger) -> str:
        """The name of a module that a traced function makes: the same each time the function is called."""
        n = 0
        for ref, _, name in self._known:
            if ref() is inner:
                return name
            n += name == inner.cls or name.startswith(f"{inner.cls}_")
        name = f"{inner.cls}_{n}" if n else inner.cls
        self._known.append((lambda: inner, None, name))
        return name

    def forget(self, inner: InnerStranger) -> None:
        """Takes a name back."""
        self._known = [entry for entry in self._known if entry[0]() is not inner]


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class InnerStranger:
    """Stands for a module that is nowhere in the model, in all calls of a traced function that makes it.

    Attributes:
        cls: The name of its class.
    """

    cls: str


def _where(n: int) -> tuple[tuple[Any, int], ...]:
    """Where the program is: the code of the innermost functions outside of Sonde and JAX, each with its instruction."""
    found: list[tuple[Any, int]] = []
    frame = sys._getframe(1)
    while frame is not None and len(found) < n:
        if not frame.f_code.co_filename.startswith((_SONDE, _JAX)):
            found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(found)
