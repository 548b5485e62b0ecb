"""Runs the programs of `programs.py`: as they are, and with their marks written by hand."""

from __future__ import annotations

import contextlib
import functools
import gc
import linecache
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tests.inside.programs import Texts, Writer

import sonde

X = jnp.array([0.3, -0.7, 1.1], jnp.float32)
Y = jnp.array([0.5, 0.2, -0.4], jnp.float32)


class Slots:
    """What classes of a program derive from."""

    __slots__ = ("kept",)

    def __init__(self, kept: Any) -> None:
        self.kept = kept


class Held:
    """A context manager that gives two arrays."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __enter__(self) -> Any:
        return self.value, self.value * 2

    def __exit__(self, *error: object) -> None:
        return None


def mapped(f: Callable) -> Callable:
    return lambda a, b: jax.vmap(f)(a, b) if a.ndim else f(a, b)


def in_custom_jvp(f: Callable) -> Callable:
    @jax.custom_jvp
    def same(a: Any) -> Any:
        return f(a)

    same.defjvp(lambda primals, tangents: (f(primals[0]), tangents[0] * jnp.cos(primals[0])))
    return same


def in_custom_vjp(f: Callable) -> Callable:
    @jax.custom_vjp
    def same(a: Any) -> Any:
        return f(a)

    same.defvjp(lambda a: (f(a), a), lambda a, g: (g * a,))
    return same


def is_site(value: Any) -> bool:
    """Whether a value is an array or a container with one."""
    if type(value) in (tuple, list, dict):
        return any(map(is_site, value.values() if type(value) is dict else value))
    return isinstance(value, jax.Array)


def arrays_of(value: Any) -> list[np.ndarray]:
    return [np.asarray(x) for x in jax.tree.leaves(value) if isinstance(x, jax.Array)]


class Marks:
    """The marks of a program by hand.

    Args:
        lines: The line of the plain text for each of the text by hand.
        at: What to do at a site, given its path, value and line; returns the value that the program continues with.
        scope: A context manager for each function.
    """

    def __init__(self, lines: list[int], at: Callable[[str, Any, int], Any], scope: Callable[[str], Any]) -> None:
        self._lines = lines
        self._at = at
        self._scope = scope
        self._open: list[tuple[str, str]] = []

    @contextlib.contextmanager
    def function(self, qualname: str) -> Iterator[None]:
        """The scope of a function: named by itself inside the function that it is defined in, else by both."""
        around = qualname.rpartition(".<locals>.")[0]
        if around in [known for known, _ in self._open]:
            name = qualname[len(around) + len(".<locals>.") :]
        else:
            name = qualname.replace(".<locals>", "")
        name = name.replace("<", "").replace(">", "")
        self._open.append((qualname, name))
        try:
            with self._scope(name):
                yield
        finally:
            self._open.pop()

    def variable(self, value: Any, name: str) -> Any:
        return self._mark(value, name, self._line(2))

    def _line(self, depth: int) -> int:
        return self._lines[sys._getframe(depth).f_lineno - 1]

    def _mark(self, value: Any, name: str, line: int) -> Any:
        path = "/".join([*(scope for _, scope in self._open), name])
        return self._at(path, value, line) if is_site(value) else value

    def a_lambda(self, qualname: str, names: str, f: Callable) -> Callable:
        line = self._line(2)

        def run(*args: Any) -> Any:
            with self.function(qualname):
                args = tuple(self._mark(value, name, line) for value, name in zip(args, names.split()))
                return self._mark(f(*args), "return", line)

        return run


class Loaded:
    """One text of a program as a module."""

    def __init__(self, text: str, name: str, marks: Marks | None = None) -> None:
        self.filename = f"<{name}>"
        linecache.cache[self.filename] = len(text), None, text.splitlines(True), self.filename
        self._names: dict[str, Any] = {
            "jax": jax,
            "jnp": jnp,
            "functools": functools,
            "nullcontext": contextlib.nullcontext,
            "SimpleNamespace": types.SimpleNamespace,
            "Slots": Slots,
            "Held": Held,
            "mapped": mapped,
            "in_custom_jvp": in_custom_jvp,
            "in_custom_vjp": in_custom_vjp,
            "CONSTANT": jnp.float32(0.5),
            "FALSE": 0,
            "__name__": name,
        }
        if marks is not None:
            self._names |= {"S": marks.variable, "FN": marks.function, "LAMBDA": marks.a_lambda}
        exec(compile(text, self.filename, "exec", dont_inherit=True), self._names)

    def program(self, x: Any, y: Any) -> Any:
        """Runs it afresh."""
        self._names["GLOBAL"] = jnp.zeros(3)
        return self._names["program"](x, y)

    def own(self) -> list[Any]:
        """The functions and classes of the module."""
        mine = [v for v in self._names.values() if isinstance(v, (types.FunctionType, type))]
        return [v for v in mine if v.__module__ == self._names["__name__"]]

    def codes(self) -> list[tuple[types.FunctionType, types.CodeType]]:
        """All function objects of the module with their code."""
        found = [f for f in gc.get_objects() if type(f) is types.FunctionType]
        return [(f, f.__code__) for f in found if f.__code__.co_filename == self.filename]


def drawn(seed: int, *, transforms: bool) -> tuple[Texts, Loaded] | None:
    """The program of a seed; None if it fails without marks, as some do."""
    texts = Writer(seed, transforms=transforms).whole()
    plain = Loaded(texts.plain, f"plain_{seed}_{transforms}")
    try:
        return (texts, plain) if is_site(plain.program(X, Y)) else None
    except Exception:
        return None


def sown(texts: Texts, name: str) -> Loaded:
    """The form by hand, with `sonde.sow` and `sonde.scope`."""
    marks = Marks(texts.lines, lambda path, value, _: sonde.sow(value, path.rpartition("/")[2]), sonde.scope)
    return Loaded(texts.by_hand, name, marks)


class Observed:
    """The form by hand, run without Sonde: what each variable was, and on which line."""

    def __init__(self, texts: Texts, name: str, edits: dict[str, Callable] | None = None) -> None:
        self.calls: dict[str, list[tuple[list[np.ndarray], int]]] = {}
        self._edits = edits or {}
        marks = Marks(texts.lines, self._at, lambda _: contextlib.nullcontext())
        self.result = Loaded(texts.by_hand, name, marks).program(X, Y)

    def _at(self, path: str, value: Any, line: int) -> Any:
        self.calls.setdefault(path, []).append((arrays_of(value), line))
        return self._edits[path](value) if path in self._edits else value
