"""What code reads, as far as its bytecode says: the names of globals and attributes; and whether it changes them."""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Hashable
from pathlib import Path
from typing import Any, NamedTuple

_OURS = __name__.partition(".")[0]


class CodeReads(NamedTuple):
    """What the code of a function, and of the functions that are written inside it, does.

    Attributes:
        globals: The names of globals that it reads.
        attributes: The names of attributes that it reads.
        asks: Whether it may tell a number from an argument of a program without an error.
        writes: Whether it may change a list, a dict or an object that it did not make.
        assigned: The variables of functions around it, and the globals, that it assigns.
    """

    globals: tuple[str, ...]
    attributes: tuple[str, ...]
    asks: bool
    writes: bool
    assigned: frozenset[str]


_TELL_APART = {"isinstance", "issubclass", "type", "repr", "str", "format", "print", "hasattr", "getattr"}
_FORMAT = {"FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC"}
_CHANGE = {"append", "appendleft", "extend", "insert", "update", "setdefault", "add", "pop", "popleft", "popitem"}
_CHANGE |= {"remove", "discard", "clear", "sort", "reverse", "setattr", "delattr"}
_STORE = {"STORE_SUBSCR", "STORE_ATTR", "DELETE_SUBSCR", "DELETE_ATTR", "STORE_SLICE"}
_ASSIGN = {"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF", "DELETE_DEREF"}


@functools.lru_cache(maxsize=4096)
def what_it_does(code: types.CodeType) -> CodeReads:
    """What some code does, with the functions that are written inside it."""
    read: dict[str, None] = {}
    named: dict[str, None] = {}
    assigned: set[str] = set()
    asks = writes = False
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        if name in ("LOAD_GLOBAL", "LOAD_NAME"):
            read[instruction.argval] = None
        elif name.startswith(("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")):
            named[instruction.argval] = None
        elif name in _FORMAT:
            asks = True
        elif name in _STORE:
            writes = True
        elif name in _ASSIGN and instruction.argval not in code.co_cellvars:
            assigned.add(instruction.argval)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            inner = what_it_does(const)
            read |= dict.fromkeys(inner.globals)
            named |= dict.fromkeys(inner.attributes)
            asks, writes = asks or inner.asks, writes or inner.writes
            assigned |= inner.assigned - set(code.co_cellvars)
    names = {*read, *named}
    asks = asks or not names.isdisjoint(_TELL_APART)
    return CodeReads(tuple(read), tuple(named), asks, writes or not names.isdisjoint(_CHANGE), frozenset(assigned))


def values_read(function: types.FunctionType) -> list[tuple[str, Any]]:
    """What a function reads: variables of functions around it, its defaults, and globals, by name."""
    code = function.__code__
    values = [
        (name, cell.cell_contents)
        for name, cell in zip(code.co_freevars, function.__closure__ or ())
        if not is_empty(cell)
    ]
    if function.__defaults__:
        values += [("", value) for value in function.__defaults__]
    if function.__kwdefaults__:
        values += function.__kwdefaults__.items()
    if is_of_library(function):  # whose globals do not change
        return values
    known = function.__globals__
    return values + [(name, known[name]) for name in what_it_does(code).globals if name in known]


def is_empty(cell: types.CellType) -> bool:
    """Whether a variable of a closure has no value yet."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


@functools.lru_cache(maxsize=4096)
def is_library(module: Hashable) -> bool:
    """Whether a module, by name, is taken not to change: it is Python's, Sonde's, or that of an installed package."""
    if not isinstance(module, str):
        return False
    package = module.partition(".")[0]
    file = getattr(sys.modules.get(package), "__file__", None) or ""
    installed = {"site-packages", "dist-packages"}.intersection(Path(file).parts)
    return package == _OURS or package in sys.stdlib_module_names or bool(installed)


def is_of_library(value: Any) -> bool:
    """Whether a function, or the class of an object, is a library's."""
    if isinstance(value, types.FunctionType):  # where it was written: a wrapper has the name of what it wraps
        return is_library(value.__globals__.get("__name__"))
    return is_library(type(value).__module__)


def is_ours(function: types.FunctionType) -> bool:
    """Whether Sonde has made a function, such as that which `edit` returns."""
    return str(function.__globals__.get("__name__")).startswith("sonde.")
