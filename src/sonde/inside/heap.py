"""Finds the function objects of a file among all objects of the process."""

from __future__ import annotations

import gc
import itertools
import operator
import sys
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

from sonde._jax import InterruptibleLock

_chained = itertools.chain.from_iterable
_map: Any = map


class Heap:
    """All function objects of some files.

    Searching all objects takes a tenth of a second, so that is done once per file. After that, new objects are searched
    while they are in Python's young generations: when the functions are needed, and before a collection moves them on.
    That slows collections down, so it ends when the functions have not been needed for a while: the next search is then
    one of all objects again.
    Python does not list objects that a program has frozen (`gc.freeze`); they are found through the others, once.
    Counting them takes time too, if there are many: they are counted again if an object that must be young is not.

    Attributes:
        lock: For everything that finds and changes functions of the process.
    """

    def __init__(self) -> None:
        self.lock = InterruptibleLock()
        self._by_file: dict[str, dict[int, weakref.ref[FunctionType]]] = {}
        self._frozen: list[weakref.ref[FunctionType]] = []
        self._n_frozen = 0
        self._n_unused = 0
        self._young = _new_function()

    def functions(self, files: Collection[str]) -> list[FunctionType]:
        """The function objects of some files."""
        return self.lock.run(lambda: self._functions(files))

    def _functions(self, files: Collection[str]) -> list[FunctionType]:
        if self._at_collection not in gc.callbacks:
            self._by_file.clear()
            gc.callbacks.append(self._at_collection)
        self._n_unused = 0
        new = [file for file in files if file not in self._by_file]
        self._by_file.update({file: {} for file in new})
        young = _listed(*_YOUNG)
        self._add(_listed(None) if new else young)
        if new or self._may_have_frozen(young):
            self._add(self._frozen_functions())
        return [f for file in files for ref in list(self._by_file[file].values()) if (f := ref()) is not None]

    def filenames(self) -> set[str]:
        """The names of the files of all function objects."""

        def found() -> set[str]:
            return {f.__code__.co_filename for f in itertools.chain(_listed(None), self._frozen_functions())}

        return self.lock.run(found)

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
            self._n_unused += 1
            if self._n_unused > _UNUSED:
                gc.callbacks.remove(self._at_collection)
            else:
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


# So many collections may move objects on between two captures for which the functions are needed.
_UNUSED = 100
# The collection that moves objects out of the young generations, of which there are one or two.
_MOVES_ON = 0 if sys.version_info >= (3, 14) else 1
_YOUNG = (0,) if _MOVES_ON == 0 else (1, 0)


def _listed(
    *generations: int | None, test: Callable[[Any, Any], bool] = operator.is_, kind: type = FunctionType
) -> Any:
    """The objects in some generations of the garbage collector that are functions, or that have another type.

    `gc.get_objects` also lists tuples that another thread is still filling. If there is a reference to such a tuple
    when its thread continues, Python raises a SystemError there. So the list of all objects must be gone before another
    thread can run: it is made, filtered and dropped in one call, in which Python runs only C code.

    Args:
        *generations: The generations; None means all.
        test: Compares the type of an object with `kind`.
        kind: The type.
    """
    twice: Any = _chained(map(itertools.repeat, map(gc.get_objects, generations), itertools.repeat(2)))
    types: Any = map(map, itertools.repeat(type), twice)  # takes every other list; `compress` takes the rest
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


HEAP = Heap()
