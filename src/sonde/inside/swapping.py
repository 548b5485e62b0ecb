"""Replaces a function's code by marked code while a capture runs.

A function object has one code for all threads. The replacement runs the function's own body in every thread but those
that capture it (`FunctionMarks.enter`), and the last capture to end restores the old code. Function objects that marked
code makes, such as the body of a loop, are treated alike: one that outlives the capture gets the code that it would
have had.

Functions are found by their code wherever they are: wrapped, decorated, in an old closure.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import operator
import os
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any, Literal

from sonde.inside.calls import Through
from sonde.inside.marks import FunctionMarks
from sonde.inside.source import SourceFile, file_named, function_of

_lock = threading.RLock()
_chained = itertools.chain.from_iterable
_map: Any = map


Use = Literal["names", "parts", "calls"]


class _Swapped:
    """A function object whose code is replaced, and for which runs: for its names, for parts too, for its calls."""

    __slots__ = ("function", "marks", "own", "through", "users")

    def __init__(self, function: FunctionType, marks: FunctionMarks | None, own: CodeType) -> None:
        self.function = weakref.ref(function)
        self.marks = marks
        self.own = own
        self.users: set[tuple[Session, Use]] = set()
        self.through: Through | None = None

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
        marked = None
        if self.marks is not None and ("names" in uses or "parts" in uses):
            marked = self.marks.code("parts" in uses)
        return self.own if marked is None else marked


_swapped: dict[int, _Swapped] = {}


class Session:
    """The functions whose code one run has replaced.

    An interrupt may cut its methods short. `end` undoes also what was begun, and may be called again.
    """

    def __init__(self) -> None:
        self.hooks = contextlib.ExitStack()
        self._mine: list[tuple[int, _Swapped]] = []

    def swap(self, function: FunctionType, marks: FunctionMarks | None, use: Use) -> None:
        """Replaces the code of a function: by marked code, or by code that reports its calls."""
        if use != "calls":
            code = None if marks is None else marks.code(use == "parts")
            if code is None or code.co_freevars != function.__code__.co_freevars:
                return
        key = id(function)
        with _lock:
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
        with _lock:
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
    known = _known.get(id(code))
    if known is None or (known[1] is None and known[2] is not file_named(code.co_filename)):
        found = function_of(code, function.__globals__)
        marks = found if isinstance(found, FunctionMarks) else None
        known = _known[id(code)] = (code, marks, None if marks is not None else file_named(code.co_filename))
    return known[1]


class _Heap:
    """All function objects of some files.

    Searching all objects takes a tenth of a second, so that is done once per file. After that, new objects are searched
    while they are in Python's young generations: when the functions are needed, and before a collection moves them on.
    Python does not list objects that a program has frozen (`gc.freeze`); they are found through the others, once.
    Counting them takes time too, if there are many: they are counted again if an object that must be young is not.
    """

    def __init__(self) -> None:
        self._by_file: dict[str, dict[int, weakref.ref[FunctionType]]] = {}
        self._frozen: list[weakref.ref[FunctionType]] = []
        self._n_frozen = 0
        self._young = _new_function()

    def functions(self, files: Collection[str]) -> list[FunctionType]:
        """The function objects of some files."""
        with _lock:
            if not self._by_file:
                gc.callbacks.append(self._at_collection)
            new = [file for file in files if file not in self._by_file]
            self._by_file.update({file: {} for file in new})
            young = _listed(*_YOUNG)
            self._add(_listed(None) if new else young)
            if new or self._may_have_frozen(young):
                self._add(self._frozen_functions())
            return [f for file in files for ref in list(self._by_file[file].values()) if (f := ref()) is not None]

    def filenames(self) -> set[str]:
        """The names of the files of all function objects."""
        with _lock:
            return {f.__code__.co_filename for f in itertools.chain(_listed(None), self._frozen_functions())}

    def _may_have_frozen(self, young: list[FunctionType]) -> bool:
        """Whether more may be frozen than the last time."""
        if self._n_frozen and id(self._young) in set(map(id, young)):
            return False
        self._young = _new_function()
        return gc.get_freeze_count() > self._n_frozen

    def _frozen_functions(self) -> Iterator[FunctionType]:
        if gc.get_freeze_count() > self._n_frozen:
            self._n_frozen = gc.get_freeze_count()
            self._frozen = [weakref.ref(x) for x in _reachable() if type(x) is FunctionType]
        return (f for ref in self._frozen if (f := ref()) is not None)

    def _at_collection(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] < _MOVES_ON:
            return
        if phase == "start":
            self._add(_listed(*_YOUNG))
        else:
            self._young = _new_function()

    def _add(self, functions: Iterable[FunctionType]) -> None:
        by_file = self._by_file
        for x in functions:
            known = by_file.get(x.__code__.co_filename)
            key = id(x)
            if known is not None and key not in known:
                known[key] = weakref.ref(x, lambda _, key=key, known=known: known.pop(key, None))


def _new_function() -> Callable[[], None]:
    return lambda: None


# The collection that moves objects out of the young generations, of which there are one or two.
_MOVES_ON = 0 if sys.version_info >= (3, 14) else 1
_YOUNG = (0,) if _MOVES_ON == 0 else (1, 0)


def _listed(
    *generations: int | None, test: Callable[[Any, Any], bool] = operator.is_, kind: type = FunctionType
) -> Any:
    """The objects in some generations whose type passes a test: all functions, if it does not say otherwise.

    Python lists tuples that another thread has begun to make. If something refers to one when its thread goes on,
    Python raises a SystemError there. So the list with everything in it must be gone before another thread can run:
    it is made, sorted out and dropped in one call, in which Python runs none of its own instructions.
    """
    twice: Any = _chained(map(itertools.repeat, map(gc.get_objects, generations), itertools.repeat(2)))
    types: Any = map(map, itertools.repeat(type), twice)  # of every second one; the others are what is chosen from
    chosen: Any = map(_map, itertools.repeat(test), types, itertools.repeat(itertools.repeat(kind)))
    return list(_chained(map(itertools.compress, twice, chosen)))


_PARTS = 10_000  # objects that are searched at a time
_NO_REFERENTS = (str, int, float, bytes, bool, CodeType, type(None))


def _reachable() -> list[Any]:
    """Every object that can be reached from a module or a listed object; see `_listed` for why not from tuples."""
    found: dict[int, Any] = {}
    todo: list[Any] = [*sys.modules.values(), *_listed(None, test=operator.is_not, kind=tuple)]
    while todo:
        part = todo[-_PARTS:]
        del todo[-_PARTS:]
        for x in gc.get_referents(*part):
            if id(x) not in found and type(x) not in _NO_REFERENTS:
                found[id(x)] = x
                todo.append(x)
    return list(found.values())


_heap = _Heap()


def functions_of(files: Collection[str]) -> list[tuple[FunctionType, FunctionMarks | None]]:
    """The function objects of some files, each with the function that it was made from; None if that is not known."""
    return [(function, marks_of(function)) for function in _heap.functions(files)]


def loaded_as(path: str) -> list[str]:
    """The names under which the functions of a file were loaded: `python ./train.py` has `/folder/./train.py`."""
    name, real = os.path.basename(path), os.path.realpath(path)
    return [f for f in _heap.filenames() if f == path or (f.endswith(name) and os.path.realpath(f) == real)]


def live_functions(wanted: Collection[FunctionMarks]) -> list[tuple[FunctionType, FunctionMarks]]:
    """The function objects that were made from some functions in files."""
    found = functions_of({marks.filename for marks in wanted})
    return [(function, marks) for function, marks in found if marks is not None and marks in wanted]
