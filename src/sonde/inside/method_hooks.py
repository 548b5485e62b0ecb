"""Calls of modules as scopes, with their arguments and results as the sites `in` and `out`.

The modules of most libraries have no hook for this. While a capture runs, the code of their methods is replaced (see
`swapping`) by code that has the same arguments and calls a copy of the function through `Through.call`. That needs no
source, and a method may be looked into at the same time.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from sonde import _jax
from sonde.core import (
    NUMBERS,
    calling,
    capture_state,
    children_of,
    flattened,
    is_part_of_caller,
    mark_arguments,
    mark_result,
    module_kind,
    name_of_method,
    note_result,
    overrides_running,
)
from sonde.inside.value_sites import LIBRARY_TYPES

_CALL, _INNER = "\0sonde:through", "\0sonde:inner"


class Through:
    """A function object whose calls are those of a module's method.

    Attributes:
        inner: A copy of it, to be called in its place.
        code: The code that the function has while a capture runs.
    """

    __slots__ = ("_function", "code", "inner", "name")

    def __init__(self, function: types.FunctionType) -> None:
        self.name = function.__name__
        self._function = weakref.ref(function)
        self.inner = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        self.inner.__kwdefaults__ = function.__kwdefaults__
        self.inner.__qualname__ = function.__qualname__
        self.inner.__dict__.update(function.__dict__)  # with what a decorator wraps: that is where its line is
        self.code = passing_on(function.__code__, self.call, self.inner)

    def call(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls the function; marks the call if a capture looks at the module."""
        state = capture_state()
        kind = module_kind(args[0]) if args else None
        if state is None or state.inside is None or kind is None:
            return inner(*args, **kwargs)
        function = self._function()
        depths = state.inside.call_depths(function) if function is not None else None
        if not depths:
            return inner(*args, **kwargs)
        name = name_of_method(type(args[0]), self.name, lambda value: _outermost(value) is function)
        name = kind.aliases.get(name, name)
        args, kwargs = self._as_called(args, kwargs)
        return run_call(args[0], name, inner, args[1:], kwargs, depths)

    def _as_called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments without those that equal their defaults: most likely they were not passed."""
        defaults = self.inner.__defaults__ or ()
        start = self.inner.__code__.co_argcount - len(defaults)
        while start < len(args) <= start + len(defaults) and args[-1] is defaults[len(args) - 1 - start]:
            args = args[:-1]
        keyword_defaults = self.inner.__kwdefaults__ or {}
        return args, {
            name: x for name, x in kwargs.items() if not (name in keyword_defaults and keyword_defaults[name] is x)
        }


def run_call(
    module: Any,
    name: str,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    depths: frozenset[int],
) -> Any:
    """Calls a method of a module, as a scope with sites."""
    if overrides_running(module, name, fn) or is_part_of_caller(module):
        return fn(module, *args, **kwargs)
    method = functools.partial(fn, module)
    with calling(module, name, fn):
        result = between_sites(name, method, args, kwargs, _written(module, name, fn), depths)
        note_result(module, result)
        return result


def _written(module: Any, name: str, fn: Callable[..., Any]) -> Any:
    """The function whose line is shown: the method in the module's class, if the library calls it from its own code."""
    kind: Any = module_kind(module)
    for alias, method in kind.aliases.items():
        if method == name and (own := getattr(type(module), alias, None)) is not None:
            return own
    return fn


def between_sites(
    name: str,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    original: Any,
    depths: frozenset[int],
) -> Any:
    """Calls a method between the sites `in` and `out`. A capture of values changes nothing; see `values`.

    Args:
        name: The name of the method.
        fn: The method, bound.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        original: The function, for its line.
        depths: Which of the nested captures see the sites.
    """
    state: Any = capture_state()
    early = _jax.evaluates_early()
    passes = (state.grads or state.edits) and not early
    keep = _is_kept_by_edits if state.edits else is_kept
    if _has_arrays((args, kwargs), keep):
        with _jax.evaluated_late() if early else contextlib.nullcontext():
            marked = mark_arguments(name, original, args, kwargs, keep, depths)
        args, kwargs = marked if passes else (args, kwargs)
    result = fn(*args, **kwargs)
    if not _has_arrays(result, keep):
        return result
    with _jax.evaluated_late() if early else contextlib.nullcontext():
        marked = mark_result(name, original, result, keep, depths)
    return marked if passes else result


def _has_arrays(value: Any, keep: Callable[[Any], bool]) -> bool:
    return any(isinstance(x, (jax.Array, np.ndarray)) for x in flattened(value, keep)[0])


def _is_kept_by_edits(value: Any) -> bool:
    return isinstance(value, LIBRARY_TYPES.passed_on) or is_kept(value)


def is_kept(value: Any) -> bool:
    """Whether an object among arguments and results must stay the same object: a module, or a number."""
    return isinstance(value, NUMBERS) or module_kind(value) is not None


def passing_on(code: types.CodeType, call: Callable[..., Any], inner: Callable[..., Any] | None) -> types.CodeType:
    """Code with the arguments and free variables of another, which passes all of them on: `call(inner, ...)`."""
    compiled = _passing_on(code)
    objects = {_CALL: call, _INNER: inner}
    constants = tuple(objects.get(c, c) if isinstance(c, str) else c for c in compiled.co_consts)
    return compiled.replace(  # codes of several files can be equal, and then share what was compiled
        co_consts=constants,
        co_name=code.co_name,
        co_qualname=code.co_qualname,
        co_filename=code.co_filename,
        co_firstlineno=code.co_firstlineno,
    )


@functools.lru_cache(maxsize=2**16)
def _passing_on(code: types.CodeType) -> types.CodeType:
    """The code of `passing_on` with placeholder words for what it calls; it serves all codes with such arguments."""
    n = code.co_argcount
    names = code.co_varnames
    plain, only = names[:n], names[n : n + code.co_kwonlyargcount]
    other_names = iter(names[n + code.co_kwonlyargcount :])
    args = next(other_names) if code.co_flags & inspect.CO_VARARGS else None
    kwargs = next(other_names) if code.co_flags & inspect.CO_VARKEYWORDS else None
    k = code.co_posonlyargcount
    signature = ", ".join(
        [*plain[:k], *(["/"] if k else []), *plain[k:], *([f"*{args}"] if args else ["*"] if only else []), *only]
        + ([f"**{kwargs}"] if kwargs else [])
    )
    passed = ", ".join(
        [*plain, *([f"*{args}"] if args else []), *(f"{x}={x}" for x in only), *([f"**{kwargs}"] if kwargs else [])]
    )
    # Code that replaces a function's must have the same free variables, used or not.
    free = "".join(f"\n        if 0: {name}" for name in code.co_freevars)
    text = (
        f"def outer({', '.join(code.co_freevars)}):\n    def inner({signature}):{free}\n"
        f"        return ({_CALL!r} if True else 0)(({_INNER!r} if True else 0), {passed})"
    )
    compiled = compile(ast.parse(text), code.co_filename, "exec", dont_inherit=True)
    for _ in range(2):
        compiled = next(c for c in compiled.co_consts if isinstance(c, types.CodeType))
    return compiled


# ---------------------------------------------------------------------------------------------------------------------
# The modules of a model, and their methods
# ---------------------------------------------------------------------------------------------------------------------


def modules_in(model: Any) -> Iterator[Any]:
    """A model and all modules inside."""
    visited: dict[int, Any] = {}
    todo = [model]
    while todo:
        value = todo.pop()
        if id(value) in visited:
            continue
        visited[id(value)] = value
        if module_kind(value) is not None:
            yield value
        todo += [child for _, child in children_of(value)]


def methods_in(model: Any, names: frozenset[str]) -> frozenset[types.FunctionType]:
    """The functions behind the methods of all modules in a model."""
    functions: dict[types.FunctionType, None] = {}
    for cls, module in {type(m): m for m in modules_in(model)}.items():
        kind: Any = module_kind(module)
        also = {alias for alias, name in kind.aliases.items() if name in names}
        for base in cls.__mro__:
            for name in names | also:
                function = _outermost(vars(base).get(name))
                if function is not None and base is not object:
                    functions[function] = None
    return frozenset(functions)


def _outermost(value: Any) -> types.FunctionType | None:
    """The function in a class that a call of a method reaches first."""
    for _ in range(10):
        if value is None or isinstance(value, types.FunctionType):
            return value
        inner = (getattr(value, name, None) for name in ("__wrapped__", "__func__", "method", "fun", "_fun"))
        value = next((x for x in inner if x is not None), None)
    return None
