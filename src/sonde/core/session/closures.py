"""What a function depends on besides its arguments: what it closes over, its defaults, and the globals that it names.

Programs that were rewritten for a predicate or a `reduce` function are kept for later calls. They are no longer valid
if the function's meaning has changed because a variable that it reads was changed. `state_of` is the part of a key that
changes with it.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from sonde.core.session.caches import by_identity

_MOST = 2_000  # parts of values, and bytes of arrays, that are compared by what they are
_DEPTH = 6
_LIBRARIES = ("jax", "jaxlib", "numpy", "functools", "builtins")  # whose functions do not change
_LEAF = jax.tree.structure(0)
_ITSELF = (bool, int, str, bytes, type(None), type(...), type, np.dtype, np.generic)


class _Same:
    """Represents an object in a key: equal only to itself, as long as the object lives."""

    __slots__ = ("_hash", "_ref", "_value")

    def __init__(self, value: Any) -> None:
        self._hash = id(value)
        try:
            self._ref, self._value = weakref.ref(value), None
        except TypeError:
            self._ref, self._value = None, value

    def _get(self) -> Any:
        return self._value if self._ref is None else self._ref()

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, _Same) and (value := self._get()) is not None and value is other._get()
        )

    def __hash__(self) -> int:
        return self._hash


def state_of(*functions: Any) -> Hashable:
    """What some functions depend on besides their arguments; None if there is nothing."""
    states = tuple([_Snapshot().of(f) for f in functions if callable(f)])
    return states if any(states) else None


def same_value(value: Any, *, without_closure: bool = False) -> Hashable:
    """A key that is equal for values that mean the same; by identity for those that cannot be compared.

    Args:
        value: Any value.
        without_closure: For a function: its code and the globals that it reads, without its closure and defaults.
    """
    if without_closure:
        globals_read = [value.__globals__[name] for name in names_read(value.__code__) if name in value.__globals__]
        return value.__code__, _Snapshot()._all(globals_read, 0)
    return _Snapshot()._value(value, 0)


class _Snapshot:
    """The parts of values, as far as they can be compared, each object once."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.left = _MOST

    def of(self, f: Any, depth: int = 0) -> Hashable:
        """The state of something that can be called."""
        if id(f) in self.seen or depth > _DEPTH or _is_of_a_library(f):
            return ()
        self.seen.add(id(f))
        if isinstance(f, functools.partial):
            return self._all((f.func, f.args, f.keywords), depth)
        if isinstance(f, types.MethodType):
            return self._all((f.__func__, f.__self__), depth)
        if isinstance(f, jax.stages.Wrapped):  # what else it has are programs that are kept
            return self.of(getattr(f, "__wrapped__", None), depth)
        if isinstance(f, types.FunctionType):
            cells = [cell for cell in f.__closure__ or () if not is_empty(cell)]
            values = [cell.cell_contents for cell in cells]
            if str(f.__module__).startswith("sonde."):  # beside the functions that they wrap, ours close over caches
                return self._all([value for value in values if callable(value)], depth)
            values += [f.__globals__[name] for name in names_read(f.__code__) if name in f.__globals__]
            return self._all((*values, *(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values()), depth)
        if isinstance(f, type) or not hasattr(f, "__dict__"):
            return ()
        return self._all((type(f).__call__, dict(vars(f))), depth)

    def _all(self, values: Iterable[Any], depth: int) -> Hashable:
        return tuple(part for value in values if (part := self._value(value, depth + 1)) != ())

    def _value(self, value: Any, depth: int) -> Hashable:
        self.left -= 1
        if isinstance(value, (float, complex, np.inexact)):
            return type(value), repr(value)  # distinguishes 0.0 from -0.0, and treats all NaNs as equal
        if isinstance(value, _ITSELF):
            return type(value), value
        if isinstance(value, types.ModuleType):
            return ()
        if depth > _DEPTH or self.left < 0:
            return _Same(value)
        if isinstance(value, (list, tuple)):
            return type(value), tuple([self._value(v, depth + 1) for v in value])
        if isinstance(value, (set, frozenset)):
            return type(value), frozenset([self._value(v, depth + 1) for v in value])
        if isinstance(value, dict):
            return type(value), tuple([self._value(pair, depth + 1) for pair in value.items()])
        if isinstance(value, np.ndarray):
            self.left -= value.nbytes
            return (_Same(value), value.tobytes()) if self.left >= 0 and value.dtype != object else _Same(value)
        if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
            return _Same(getattr(value, "__func__", value)), self.of(value, depth)
        leaves = _leaves_of_pytree(value)
        if leaves is not None:
            self.seen.add(id(value))  # arrays are replaced, not changed, so it is enough to know which there are
            return _Same(value), tuple([self._value(x, _DEPTH) for x in leaves if hasattr(x, "dtype")])
        if type(value).__eq__ is not object.__eq__ and type(value).__hash__ is not None:
            return by_identity(value)
        if hasattr(value, "__dict__") and id(value) not in self.seen and not _is_of_a_library(value):
            self.seen.add(id(value))
            return _Same(value), self._value(dict(vars(value)), max(depth + 1, _DEPTH - 1))
        return _Same(value)


def _leaves_of_pytree(value: Any) -> list[Any] | None:
    """The leaves of a registered pytree, such as a model; None for a leaf."""
    leaves, structure = jax.tree.flatten(value)
    return None if structure == _LEAF else leaves


def _is_of_a_library(value: Any) -> bool:
    if isinstance(value, functools.partial | types.MethodType):
        return False
    is_function = isinstance(value, types.FunctionType)
    module = getattr(value if is_function else type(value), "__module__", None)
    if not isinstance(module, str):
        return False
    # Our own functions read nothing that changes, unless they close over something of the user's.
    ours = is_function and value.__closure__ is None and module.startswith("sonde.")
    return ours or module.partition(".")[0] in _LIBRARIES


def is_empty(cell: Any) -> bool:
    """Whether a variable of a closure has no value yet."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


def names_read(code: types.CodeType) -> Iterator[str]:
    """The names of globals that a function may read, also in functions that are written inside it."""
    yield from code.co_names
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from names_read(const)
