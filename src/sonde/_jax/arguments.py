"""The arrays behind the arguments of a program, while the program is traced.

JAX traces a program with only the types of its arguments. But before `jit`, `scan`, `cond`, `checkpoint` and the like
trace a function, they describe the call, with its arguments, for error messages (`api_util.debug_info`), and
the trace keeps the description. While a capture runs, descriptions have weak references to the arrays among the
arguments, and to whatever else `tracing_hook` notes: they keep nothing alive, and are equal to those that JAX makes
itself. JAX keeps descriptions in its caches, so the references are dropped when the capture ends.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax._src.interpreters import partial_eval as _pe
from jax._src.linear_util import DebugInfo as _DebugInfo
from jax._src.tree_util import tracing_registry as _tracing_registry

__all__ = [
    "TracedArguments",
    "arrays_described",
    "forget_arguments",
    "is_followed",
    "notes_described",
    "traces_around",
]


class _Description(_DebugInfo):
    """A description of a call that holds the call's arguments."""

    arrays: tuple[weakref.ref[Any] | None, ...] = ()
    notes: Any = None

    def __reduce__(self) -> Any:
        return _DebugInfo, tuple(self)


def _replace(self: _Description, /, **changes: Any) -> _Description:
    description = _Description._make(changes.get(name, value) for name, value in zip(self._fields, self))
    description.arrays, description.notes = self.arrays, self.notes
    _made.add(description)
    return description


setattr(_Description, "_replace", _replace)  # noqa: B010 (JAX replaces names that it learns only from the trace)


class _Made(threading.local):
    """The descriptions that were made in this thread and may still hold references."""

    def __init__(self) -> None:
        self.descriptions: list[_Description] = []
        self.enough = 1000

    def add(self, description: _Description) -> None:
        if len(self.descriptions) >= self.enough:
            # Tuples cannot be weakly referenced. JAX has dropped a tuple if only this list and the loop refer to it.
            self.descriptions = [made for made in self.descriptions if sys.getrefcount(made) > 3]
            self.enough = max(1000, 2 * len(self.descriptions))
        self.descriptions.append(description)


_made = _Made()


def forget_arguments() -> None:
    """Drops what the descriptions of this thread refer to. Called when the last capture has ended."""
    descriptions, _made.descriptions = _made.descriptions, []  # first, so that after an interrupt none is cleared twice
    for description in descriptions:
        del description.__dict__


def described(
    info: Any, args: Sequence[Any], kwargs: dict[str, Any], static: tuple[Sequence[int], Sequence[str]], notes: Any
) -> Any:
    """A description of a call that holds the arrays among its arguments.

    Args:
        info: JAX's own description.
        args: The positional arguments.
        kwargs: The keyword arguments.
        static: The positions and names of static arguments, which the program does not get.
        notes: What else to keep with it.
    """
    description = _Description(*info)
    description.arrays = tuple(map(_weakly, traced_arguments(args, kwargs, *static)))
    description.notes = notes
    _made.add(description)
    return description


def traced_arguments(
    args: Sequence[Any], kwargs: dict[str, Any], static_argnums: Sequence[int], static_argnames: Sequence[str]
) -> list[Any]:
    """The leaves of a function's arguments that its program gets, which excludes static ones."""
    static = {i % len(args) for i in static_argnums if -len(args) <= i < len(args)} if args else ()
    traced_args = tuple(x for i, x in enumerate(args) if i not in static)
    return _tracing_registry.flatten(
        (traced_args, {name: x for name, x in kwargs.items() if name not in static_argnames})
    )[0]


def _weakly(value: Any) -> weakref.ref[Any] | None:
    return weakref.ref(value) if is_followed(value) else None


def is_followed(value: Any) -> bool:
    """Whether a value is an array that can be referred to weakly. Those of some extended types cannot."""
    return isinstance(value, (jax.Array, np.ndarray)) and type(value).__weakrefoffset__ != 0


def notes_described(info: Any) -> Any:
    """What was noted with a description; None if nothing was."""
    return info.notes if type(info) is _Description else None


def arrays_described(info: Any, types: Sequence[Any]) -> list[Any] | None:
    """The arrays that a described call was made with, for arguments of some types.

    Numbers, arrays that no longer exist, and arguments that Sonde has added at the end are None. The result is None if
    the description belongs to another call.
    """
    if type(info) is not _Description:
        return None
    arrays = [None if ref is None else ref() for ref in info.arrays[: len(types)]]
    if len(info.arrays) != len(types):  # a rule may get tangents after the arguments, or only some arguments
        ranks = [(np.ndim(x), len(getattr(t, "shape", ()))) for x, t in zip(arrays, types) if x is not None]
        if any(own_rank != wanted_rank for own_rank, wanted_rank in ranks):
            return None
    return [*arrays, *[None] * (len(types) - len(arrays))]


def traces_around(trace: Any) -> list[Any]:
    """A trace and its parents, innermost first."""
    traces = []
    while trace is not None:
        traces.append(trace)
        trace = getattr(trace, "parent_trace", None) or getattr(trace, "parent", None)
    return traces


class TracedArguments:
    """The arguments of programs that are being traced, as those programs have described them.

    Args:
        around: Traces that were active before: their arguments are ordinary values.
    """

    def __init__(self, around: Sequence[Any]) -> None:
        self._around = around
        self._known: dict[int, tuple[Any, dict[int, int], list[Any] | None]] = {}

    def find(self, tracer: Any) -> tuple[Any, int, Any] | None:
        """For an argument of a program: the description of the call, its number, and the array behind it.

        The array is None if it is not known. The result is None if the tracer is not an argument, or is an argument
        of a trace in `around`.
        """
        if not isinstance(tracer, _pe.DynamicJaxprTracer) or any(tracer._trace is trace for trace in self._around):
            return None
        trace = tracer._trace
        if id(trace) not in self._known:
            frame = trace.frame
            arrays = arrays_described(frame.debug_info, [var.aval for var in frame.invars])
            self._known[id(trace)] = trace, {id(var): i for i, var in enumerate(frame.invars)}, arrays
        _, numbers, arrays = self._known[id(trace)]
        number = numbers.get(id(tracer.val))
        if number is None:
            return None
        return trace.frame.debug_info, number, None if arrays is None else arrays[number]
