"""Replaces a function's code by marked code while a capture runs.

A function object has one code for all threads. The replacement runs the function's own body in every thread but those
that capture it (`FunctionMarks.enter`), and the last capture to end restores the old code. Function objects that marked
code makes, such as the body of a loop, are treated alike: one that outlives the capture gets the code that it would
have had.

Functions are found by their code wherever they are: wrapped, decorated, in an old closure.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Collection
from types import CodeType, FunctionType
from typing import Any, Literal

from sonde.inside.heap import HEAP
from sonde.inside.instrumented import FunctionMarks
from sonde.inside.method_hooks import Through, passing_on
from sonde.inside.source import SourceFile, file_named, function_of

Use = Literal["names", "parts", "calls"]


class _Swapped:
    """A function object whose code is replaced, and for which runs: for its names, for parts too, for its calls."""

    __slots__ = ("_is_called", "_waiting", "function", "marks", "own", "through", "users")

    def __init__(self, function: FunctionType, marks: FunctionMarks | None, own: CodeType) -> None:
        self.function = weakref.ref(function)
        self.marks = marks
        self.own = own
        self.users: set[tuple[Replacements, Use]] = set()
        self.through: Through | None = None
        self._is_called = False  # since it waits to be marked
        self._waiting: CodeType | None = None

    def settle(self) -> None:
        """Gives the function the code that its users want."""
        function = self.function()
        if function is not None:
            uses: set[Use] = {use for _, use in self.users}
            code = self._code(uses)
            if "calls" in uses:
                if self.through is None:
                    self.through = Through(function)
                self.through.inner.__code__, code = code, self.through.code
            if function.__code__ is not code:
                function.__code__ = code

    def _code(self, uses: set[Use]) -> CodeType:
        if self.marks is None or not ("names" in uses or "parts" in uses):
            return self.own
        parts = "parts" in uses
        if not (self._is_called or self.marks.is_read(parts)):
            if self._waiting is None:
                self._waiting = passing_on(self.own, self._first_call, None)
            return self._waiting
        marked = self.marks.code(parts)
        return marked if marked is not None and marked.co_freevars == self.own.co_freevars else self.own

    def _first_call(self, inner: None, /, *args: Any, **kwargs: Any) -> Any:
        """Marks the function, and calls it."""
        del inner
        self._is_called = True
        HEAP.lock.run(self.settle)
        function = self.function() if self.through is None else self.through.inner
        assert function is not None  # it is being called
        return function(*args, **kwargs)


_swapped: dict[int, _Swapped] = {}


def code_as_written(function: object) -> CodeType | None:
    """The code of a function whose code is replaced now, as it was before; None for all others."""
    entry = _swapped.get(id(function))
    return entry.own if entry is not None and entry.function() is function else None


class Replacements:
    """The functions whose code one session has replaced.

    An interrupt may cut its methods short. `end` undoes also what was begun, and may be called again.
    """

    def __init__(self) -> None:
        self.hooks = contextlib.ExitStack()
        self._mine: list[tuple[int, _Swapped]] = []

    def swap(self, function: FunctionType, marks: FunctionMarks | None, use: Use, *, waits: bool = False) -> None:
        """Replaces the code of a function: by marked code, or by code that reports its calls.

        Args:
            function: The function.
            marks: Where it is written.
            use: What for.
            waits: Whether it is marked when it is first called: marking a file takes as long as importing it, and most
                files of a package are not called.
        """
        if use != "calls" and not (waits and marks is not None and not marks.is_read(use == "parts")):
            code = None if marks is None else marks.code(use == "parts")
            if code is None or code.co_freevars != function.__code__.co_freevars:
                return
        HEAP.lock.run(lambda: self._swap(function, marks, use))

    def _swap(self, function: FunctionType, marks: FunctionMarks | None, use: Use) -> None:
        key = id(function)
        entry = _swapped.get(key)
        if entry is None or entry.function() is not function:
            own = function.__code__
            if marks is not None and marks.plain is not None and marks.has_code(own):
                own = marks.plain  # marked code has made the function
            entry = _Swapped(function, marks, own)
        self._mine.append((key, entry))
        _swapped[key] = entry
        entry.marks = entry.marks or marks
        entry.users.add((self, use))
        entry.settle()

    def end(self) -> None:
        """Undoes everything."""
        self.hooks.close()
        HEAP.lock.run(self._restore)

    def _restore(self) -> None:
        for key, entry in self._mine:
            entry.users = {user for user in entry.users if user[0] is not self}
            entry.settle()
            if not entry.users and _swapped.get(key) is entry:
                del _swapped[key]
        self._mine.clear()


# ---------------------------------------------------------------------------------------------------------------------
# Function objects by their code
# ---------------------------------------------------------------------------------------------------------------------

# For code objects that were met: the function in the file; or None, and the file that it was not found in.
_known: dict[int, tuple[CodeType, FunctionMarks | None, SourceFile | None]] = {}


def marks_of(function: FunctionType) -> FunctionMarks | None:
    """The function in a file that a function object was made from."""
    entry = _swapped.get(id(function))
    code = function.__code__
    if entry is not None and entry.function() is function:
        if entry.marks is not None:
            return entry.marks
        code = entry.own
    entry_of_code = _known.get(id(code))
    if entry_of_code is None or (entry_of_code[1] is None and entry_of_code[2] is not file_named(code.co_filename)):
        marks_or_reason = function_of(code, function.__globals__, function.__qualname__)
        marks = marks_or_reason if isinstance(marks_or_reason, FunctionMarks) else None
        entry_of_code = _known[id(code)] = (code, marks, None if marks is not None else file_named(code.co_filename))
    return entry_of_code[1]


def functions_of(files: Collection[str]) -> list[tuple[FunctionType, FunctionMarks | None]]:
    """The function objects of some files, each with the function that it was made from; None if that is not known."""
    return [(function, marks_of(function)) for function in HEAP.functions(files)]


def loaded_as(path: str) -> list[str]:
    """The names under which the functions of a file were loaded: `python ./train.py` has `/folder/./train.py`."""
    name, real = os.path.basename(path), os.path.realpath(path)
    return [f for f in HEAP.filenames() if f == path or (f.endswith(name) and os.path.realpath(f) == real)]


def live_functions(wanted: Collection[FunctionMarks]) -> list[tuple[FunctionType, FunctionMarks]]:
    """The function objects that were made from some functions in files."""
    functions = functions_of({marks.filename for marks in wanted})
    return [(function, marks) for function, marks in functions if marks is not None and marks in wanted]
