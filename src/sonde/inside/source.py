"""Files whose functions can be marked: from a code object to its function, and from there to marked code.

A file is parsed and compiled whole, so that names in classes, closures and `super()` keep their meaning. The unmarked
result is compared with the code that runs: if they differ, the function was made from another source, and nothing is
marked. Tools that change the syntax tree on import (as pytest does with `assert`) are allowed for (`comparing`).
"""

from __future__ import annotations
import __future__

import ast
import functools
import linecache
import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, TypeVar

from sonde.inside.comparing import OpenLines, is_made_from, open_lines
from sonde.inside.functions import Function, functions_in
from sonde.inside.marks import FunctionMarks
from sonde.inside.syntax import marked_tree, read_word
from sonde.inside.values import called_from_c

_FUTURE = 0
for _name in __future__.all_feature_names:
    _FUTURE |= getattr(__future__, _name).compiler_flag

_lock = threading.RLock()

CHANGED = "its source has changed since it was loaded, or a tool changed it on import; load it again, without the tool"
NOT_ALONE = "it cannot be told apart from others on its line; write it on a line of its own"


class SourceFile:
    """A file, or a cell of a notebook.

    Attributes:
        functions: All functions that are written in it, each after the one that it is defined in.
    """

    def __init__(self, filename: str, source: str, flags: int) -> None:
        self.filename = filename
        self._source = source
        self._flags = flags
        self._marked: dict[bool, dict[int, CodeType]] = {}
        self.functions: list[FunctionMarks] = []
        for function in _deep_enough(self._read):
            parent = None if function.parent is None else self.functions[function.parent]
            self.functions.append(FunctionMarks(function, filename, parent, self._marked_code))
            for outer in self.functions[-1].outer:
                outer.inner.append(self.functions[-1])
        self._by_code: dict[CodeType, FunctionMarks] = {}
        self._by_place: dict[tuple[str, int], list[FunctionMarks]] = {}
        self._others: set[tuple[str, CodeType]] = set()  # of the file itself too: Python runs it as a function
        self._made: dict[int, CodeType] = {}
        self._match(compile(source, filename, "exec", flags, dont_inherit=True))

    def _read(self) -> list[Function]:
        return [function for _, function in functions_in(ast.parse(self._source, self.filename))]

    def _match(self, whole: CodeType) -> None:
        for function in self.functions:
            self._by_place.setdefault((function.qualname, function.function.line), []).append(function)
        for code in (whole, *_codes_in(whole)):
            found = self._by_place.get((code.co_qualname, code.co_firstlineno), [])
            if len(found) > 1:
                found = [f for f in found if f.function.start == _start(code)]
            if len(found) == 1 and found[0].plain is None:
                found[0].plain = code
                self._by_code[code] = found[0]
            elif not found:
                self._others.add((code.co_qualname, code))
        for function in self.functions:
            if function.plain is None and function.reason is None:
                others = self._by_place[function.qualname, function.function.line]
                function.reason = NOT_ALONE if len(others) > 1 else "Python makes no code for it"

    def find(self, code: CodeType) -> FunctionMarks | None:
        """The function that has this code; None if the source is not what the code was made from."""
        exact = self._by_code.get(code)
        if exact is not None and exact.qualname == code.co_qualname:  # which Python does not compare
            return exact
        copied = next((f for f in self.functions if f.has_code(code)), None)
        if copied is not None:  # the program made a function of it while a capture ran
            return copied
        found = self._by_place.get((code.co_qualname, code.co_firstlineno), [])
        plain = found[0].plain if len(found) == 1 else None
        return found[0] if plain is not None and is_made_from(plain, code, self._open_lines) else None

    def has_part(self, code: CodeType) -> bool:
        """Whether a code is in it, but not that of a function: a comprehension, or what marked code is made of."""
        return (code.co_qualname, code) in self._others or id(code) in self._made

    def has_several(self, code: CodeType) -> bool:
        """Whether several functions in it have the name and line of a code."""
        return len(self._by_place.get((code.co_qualname, code.co_firstlineno), [])) > 1

    @functools.cached_property
    def _open_lines(self) -> OpenLines:
        return open_lines(ast.parse(self._source, self.filename))

    def _marked_code(self, function: FunctionMarks, parts: bool) -> CodeType | None:
        with _lock:
            if parts not in self._marked:
                found: dict[int, CodeType] = {}
                self._with_objects(_deep_enough(lambda: self._compiled(parts)), found)
                self._marked[parts] = found
            return self._marked[parts].get(function.function.index)

    def _compiled(self, parts: bool) -> CodeType:
        tree = marked_tree(self._source, self.filename, parts=parts)
        return compile(tree, self.filename, "exec", self._flags, dont_inherit=True)

    def _with_objects(self, code: CodeType, found: dict[int, CodeType]) -> CodeType:
        """The code with the placeholder words among its constants replaced by their objects."""
        constants: list[Any] = []
        mine: int | None = None
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                constant = self._with_objects(constant, found)
            elif (spoken := read_word(constant)) is not None:
                role, index = spoken
                function = self.functions[index]
                constant = function if role == "scope" else called_from_c(getattr(FunctionMarks, role), function)
                mine = index if role == "enter" else mine
            constants.append(constant)
        new = code.replace(co_consts=tuple(constants))
        if mine is not None:
            found[mine] = new
        else:
            self._made[id(new)] = new
        return new


_T = TypeVar("_T")
_DEEPER = 20_000


def _deep_enough(walk: Callable[[], _T]) -> _T:
    """Walks over a syntax tree. A sum of a thousand terms is a thousand deep, more than calls may usually be."""
    try:
        return walk()
    except RecursionError:
        before = sys.getrecursionlimit()
        sys.setrecursionlimit(before + _DEEPER)
        try:
            return walk()
        finally:
            sys.setrecursionlimit(before)


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes_in(constant)


def _start(code: CodeType) -> tuple[int, int] | None:
    """Line and column of the first expression in a code."""
    places = [(line, column) for line, _, column, end in code.co_positions() if line and column is not None and end]
    return min(places, default=None)


_files: dict[tuple[str, int], tuple[list[str], SourceFile | None]] = {}


def file_named(filename: str, flags: int = 0, *, loaded_by: dict[str, Any] | None = None) -> SourceFile | None:
    """The file of a name; None if there is no source.

    Args:
        filename: The name.
        flags: The future imports that it inherits.
        loaded_by: The globals of its module, with the loader of files that are in an archive.
    """
    key = (filename, flags)
    with _lock:
        if loaded_by is not None:
            linecache.lazycache(filename, loaded_by)
        linecache.checkcache(filename)  # a file may be edited and loaded again
        lines = linecache.getlines(filename)
        known = _files.get(key)
        if known is not None and (known[0] is lines or known[0] == lines):
            return known[1]
        try:
            found = SourceFile(filename, "".join(lines), flags) if lines else None
        except (SyntaxError, ValueError, RecursionError):  # a page or a template, not Python; or data, too deep for it
            found = None
        _files[key] = (lines, found)
        return found


def function_of(code: CodeType, loaded_by: dict[str, Any] | None = None) -> FunctionMarks | str:
    """The function that a code was made from, or why it is not known; `loaded_by` are the globals of its module."""
    file = file_named(code.co_filename, loaded_by=loaded_by)
    if file is None:
        return "its source is not available"
    found = file.find(code)
    if found is None and code.co_flags & _FUTURE:  # a notebook's cell inherits the future imports of earlier ones
        file = file_named(code.co_filename, code.co_flags & _FUTURE)
        found = None if file is None else file.find(code)
    if found is not None:
        return found
    return NOT_ALONE if file is not None and file.has_several(code) else CHANGED
