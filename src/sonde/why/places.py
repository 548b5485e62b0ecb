"""Where in the user's code an equation is: function, variable, file and line, and the calls around."""

from __future__ import annotations

import ast
import functools
import linecache
import os
from typing import Any, NamedTuple

from sonde import _jax
from sonde._array_text import short_place
from sonde.programs.flat import Equation

_SONDE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# Frames of Sonde are between JAX and the program, but for those of layers, which are part of it.
_LAYERS = tuple(_SONDE + part for part in ("nnx/layers/", "linen/layers/", "ops/", "models/", "demo/"))
_START = _SONDE + os.path.join("why", "tape.py")


class Place(NamedTuple):
    """A line of code.

    Attributes:
        function: The function, as its own name without those around it.
        variable: The variable that the line assigns to; empty if it does not.
        source: File and line, as `file:line`.
        chain: The calls that led there, innermost first, each as `file:line in function`.
    """

    function: str = ""
    variable: str = ""
    source: str = ""
    chain: tuple[str, ...] = ()

    @property
    def is_interpreter(self) -> bool:
        """Whether the line runs operations of a program that was traced before, as packages do that evaluate jaxprs."""
        file, _, line = self.source.rpartition(":")
        return bool(file) and ".bind(" in linecache.getline(file, int(line))

    def __str__(self) -> str:
        what = " / ".join(part for part in (self.function, self.variable) if part)
        return ", ".join(filter(None, (what, short_place(self.source))))


NOWHERE = Place()


def place_of(equation: Equation) -> Place:
    """Where an equation is."""
    frames: list[_jax.Frame] = []
    for source in equation.sources:
        for frame in _jax.frames_of(source):
            if frame.file == _START and frame.function.endswith(
                "guarded"
            ):  # the function that is searched was called here
                return _place(frames)
            if not frame.file.startswith(_SONDE) or frame.file.startswith(_LAYERS):
                frames.append(frame)
    return _place(frames)


def _place(frames: list[_jax.Frame]) -> Place:
    if not frames:
        return NOWHERE
    first = frames[0]
    chain = tuple(dict.fromkeys(f"{f.file}:{f.line} in {_short(f.function)}" for f in frames))
    return Place(_short(first.function), variable_at(first.file, first.line), f"{first.file}:{first.line}", chain)


def _short(function: str) -> str:
    """The name of a function; for a lambda, that of the function around it, if there is one."""
    parts = [part for part in function.split(".") if not part.startswith("<")]
    return parts[-1] if parts else function


def variable_at(file: str, line: int) -> str:
    """The variable, or variables, that the statement on a line assigns to; empty if there is none."""
    best: tuple[int, str] | None = None
    for first, last, name in _assignments(file):
        if first <= line <= last and (best is None or last - first < best[0]):
            best = (last - first, name)
    return "" if best is None else best[1]


@functools.lru_cache(maxsize=64)
def _assignments(file: str) -> tuple[tuple[int, int, str], ...]:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ()
    found: list[tuple[int, int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            name = ", ".join(ast.unparse(target) for target in node.targets)
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            name = ast.unparse(node.target)
        elif isinstance(node, (ast.Return, ast.Expr, ast.FunctionDef, ast.AsyncFunctionDef)):
            name = ""  # a statement of its own inside a larger one
        else:
            continue
        body: Any = getattr(node, "body", None)
        if isinstance(body, list):
            continue
        found.append((node.lineno, node.end_lineno or node.lineno, name))
    return tuple(found)
