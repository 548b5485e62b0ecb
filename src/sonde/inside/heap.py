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
        self._frozen: dict[str, list[weakref.ref[FunctionType]]] = {}
        self._n_frozen = 0
        self._n_unused = 0
        self._young = _new_function()
        self._may_have_frozen = True

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
        more_are_frozen = self._find_frozen(young)
        for file in self._by_file if more_are_frozen else new:
            self._add(_alive(self._frozen.get(file, ())))
        return [f for file in files for f in _alive(list(self._by_file[file].values()))]

    def filenames(self) -> set[str]:
        """The names of the files of all function objects."""

        def names() -> set[str]:
            self._find_frozen(_listed(*_YOUNG))
            frozen = {file for file, refs in self._frozen.items() if any(_alive(refs))}
            return frozen | {f.__code__.co_filename for f in _listed(None)}

        return self.lock.run(names)

    def _find_frozen(self, young: list[FunctionType]) -> bool:
        """Lists the frozen functions if more objects may be frozen than the last time; returns whether it did."""
        self._check_young(young)
        if not self._may_have_frozen:
            return False
        self._may_have_frozen = False
        self._young = _new_function()
        if gc.get_freeze_count() <= self._n_frozen:
            return False
        self._n_frozen = gc.get_freeze_count()
        self._frozen.clear()
        self.add_frozen(_reachable())
        return True

    def _check_young(self, young: list[FunctionType]) -> None:
        """Notices if an object that must be young is not: then objects have been frozen since it was made."""
        self._may_have_frozen = self._may_have_frozen or self._young not in young

    def add_frozen(self, functions: Iterable[FunctionType]) -> None:
        """Remembers functions that Python does not list any more."""
        for function in functions:
            self._frozen.setdefault(function.__code__.co_filename, []).append(weakref.ref(function))

    def _at_collection(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] < _MOVES_ON:
            return
        if phase == "start":
            self._n_unused += 1
            if self._n_unused > _UNUSED:
                gc.callbacks.remove(self._at_collection)
            else:
                young = _listed(*_YOUNG)
                self._add(young)
                self._check_young(young)
        else:
            self._young = _new_function()

    def _add(self, functions: Iterable[FunctionType]) -> None:
        by_file = self._by_file
        for x in functions:
            known = by_file.get(x.__code__.co_filename)
            key = id(x)
            if known is not None and key not in known:
                known[key] = weakref.ref(x, lambda _, key=key, known=known: known.pop(key, None))


def _alive(refs: Iterable[weakref.ref[FunctionType]]) -> Iterator[FunctionType]:
    return (function for ref in refs if (function := ref()) is not None)


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


def _reachable() -> list[FunctionType]:
    """The functions that can be reached from a module or a listed object; see `_listed` for why not from tuples."""
    reachable: dict[int, Any] = {}
    listed = _listed(None, test=operator.is_not, kind=tuple)
    todo: list[Any] = [*sys.modules.values(), *listed]
    while todo:
        part = todo[-_PARTS:]
        del todo[-_PARTS:]
        for x in gc.get_referents(*part):
            if id(x) not in reachable and type(x) not in _NO_REFERENTS:
                reachable[id(x)] = x
                todo.append(x)
    functions = [x for x in reachable.values() if type(x) is FunctionType]
    # They are listed objects themselves, and would keep everything alive until the next collection.
    listed.clear()
    reachable.clear()
    return functions


HEAP = Heap()
