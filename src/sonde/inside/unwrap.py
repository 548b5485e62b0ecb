"""The function that is meant by what decorators, transforms and other wrappers made of it.

Most wrappers say what they wrap (`__wrapped__`, `func`). Others only hold it, in a closure or an attribute: if such a
wrapper takes `*args`, both it and the functions that it holds are instrumented.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterator
from typing import Any

_SAID = ("__wrapped__", "func")
_UNWRAPS = ("__wrapped__", "__func__", "func", "fget", "__partialmethod__", "_partialmethod")
_HOLDS = ("__wrapped__", "__func__", "func", "fget", "fset", "method", "fun")
_DEEP = 4  # wrappers in one another
_MOST = 100  # if they say what they wrap; two may say so of each other


def functions_meant(thing: Any) -> tuple[list[types.FunctionType], list[types.FunctionType]]:
    """The functions of an object itself, and those that a wrapper among them holds; both empty if it has none."""
    own: dict[types.FunctionType, None] = {}
    held: dict[types.FunctionType, None] = {}
    for part in _parts_of(thing):
        for i, function in enumerate(_meant(part, _DEEP)):
            (held if i else own)[function] = None
    return list(own), [function for function in held if function not in own]


def plain_function(thing: Any) -> types.FunctionType | None:
    """The function as written, without decorators, partials, methods and jit around it."""
    return _innermost(thing)[0]


def with_wrapped(value: Any) -> Iterator[Any]:
    """An object, what it says that it wraps, what that wraps, and so on."""
    for _ in range(_MOST):
        if value is None:
            return
        yield value
        value = None if isinstance(value, type) else _callable_in(value, _SAID)


def functions_below(value: Any, depth: int = _DEEP) -> Iterator[types.FunctionType]:
    """Every function that can be reached from an attribute of a class or module through its decorators."""
    if isinstance(value, types.FunctionType):
        yield value
    if depth == 0 or isinstance(value, type):
        return
    inner = list(_closed_over(value)) if isinstance(value, types.FunctionType) else []
    for name in _HOLDS:
        if inspect.getattr_static(value, name, None) is not None:
            inner.append(getattr(value, name, None))
    for x in inner:
        if isinstance(x, types.FunctionType) or (callable(x) and x is not value) or isinstance(x, property):
            yield from functions_below(x, depth - 1)


def _parts_of(value: Any) -> list[Any]:
    """The functions of a property, those that `functools.singledispatch` chooses from, or the thing itself."""
    if isinstance(value, property):
        return [value.fget, value.fset, value.fdel]
    value = getattr(value, "dispatcher", value) if isinstance(value, functools.singledispatchmethod) else value
    registry = getattr(value, "registry", None) if hasattr(value, "dispatch") else None
    return list(registry.values()) if isinstance(registry, types.MappingProxyType) else [value]


def _meant(thing: Any, depth: int) -> Iterator[types.FunctionType]:
    function, holder = _innermost(thing)
    if function is None:
        return
    yield function
    if depth and function.__code__.co_flags & inspect.CO_VARARGS:
        held = _closed_over(function) if holder is function else getattr(holder, "__dict__", {}).values()
        for x in held:
            if callable(x) and not isinstance(x, type):
                yield from _meant(x, depth - 1)


def _innermost(thing: Any) -> tuple[types.FunctionType | None, Any]:
    """The function as written, and the object whose `__call__` it is, or the function again."""
    for _ in range(_MOST):
        inner = _unwrapped(thing)
        if inner is None:
            break
        thing = inner
    if isinstance(thing, types.FunctionType):
        return thing, thing
    call = None if isinstance(thing, type) else type(thing).__call__
    return (call, thing) if isinstance(call, types.FunctionType) else (None, None)


def _unwrapped(thing: Any) -> Any:
    if isinstance(thing, type):
        return None
    inner = _callable_in(thing, _UNWRAPS)
    if inner is not None or isinstance(thing, types.FunctionType):
        return inner
    method = getattr(thing, "method", None)  # the descriptor that wraps methods of equinox.Module
    return method if callable(method) and hasattr(type(thing), "__get__") else None


def _callable_in(thing: Any, names: tuple[str, ...]) -> Any:
    """The first of some attributes that can be called."""
    for name in names:
        inner = inspect.getattr_static(thing, name, None)
        inner = None if inner is None else getattr(thing, name, None)
        if (callable(inner) or isinstance(inner, functools.partialmethod)) and inner is not thing:
            return inner
    return None


def _closed_over(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # still empty
            continue
