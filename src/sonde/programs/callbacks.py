"""Functions of the host that a program calls, when the program runs a second time to be explained.

A function that raises ends the program. Here it must not: it is noted that it raised, and zeros are returned in place
of its results. A function with side effects (`io_callback`) is not called again: what it returned in the real run was
written down, and is returned for the same arguments. Prints are left out, because the program has printed already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from sonde import _jax

Written = dict[tuple[int, tuple[bytes, ...]], Any]


class Callbacks:
    """The functions of the host that one explained program calls.

    Attributes:
        raised: The functions that raised, with the exception.
        written: What functions with side effects returned in the real run, by function and arguments.
    """

    def __init__(self, written: Written | None = None) -> None:
        self.raised: list[tuple[Any, Exception]] = []
        self.written: Written = {} if written is None else written
        self._safe: dict[int, tuple[Any, dict[str, Any] | None]] = {}
        self._functions: dict[int, tuple[Any, Callable[..., Any]]] = {}

    def safe(self, primitive: _jax.Primitive, params: dict[str, Any]) -> dict[str, Any] | None:
        """The parameters of an equation whose functions do not raise; None if the equation is to be left out."""
        entry = self._safe.get(id(params))
        if entry is None:
            changed = params
            if _jax.has_callbacks(primitive, params):
                changed = _jax.with_other_callbacks(primitive, params, self._function)
            entry = self._safe[id(params)] = (params, changed)
        return entry[1]

    def _function(self, callback: Any, types: Sequence[Any], has_effects: bool) -> Callable[..., Any]:
        entry = self._functions.get(id(callback))
        if entry is None:
            safe = self._without_raising(callback, types, has_effects)
            entry = self._functions[id(callback)] = (callback, safe)
        return entry[1]

    def _without_raising(self, callback: Any, types: Sequence[Any], has_effects: bool) -> Callable[..., Any]:
        original = getattr(callback, "original", callback)

        def run(*args: Any) -> Any:
            try:
                if has_effects and (key := _key(original, args)) in self.written:
                    return self.written[key]
                if not has_effects and not self.raised:  # after that, the program had ended
                    return callback(*args)
            except Exception as error:
                self.raised.append((callback, error))
            return tuple(np.zeros(t.shape, t.dtype) for t in types)

        return run


def _key(callback: Any, args: Sequence[Any]) -> tuple[int, tuple[bytes, ...]]:
    return id(callback), tuple(np.asarray(x).tobytes() for x in args)


def writing(primitive: _jax.Primitive, params: dict[str, Any], written: Written) -> dict[str, Any]:
    """The parameters of an equation whose functions with side effects write down what they return."""

    def change(callback: Any, types: Sequence[Any], has_effects: bool) -> Any:
        del types
        return _Writing(callback, written) if has_effects else callback

    changed = _jax.with_other_callbacks(primitive, params, change, prints=True)
    return params if changed is None else changed


class _Writing:
    """A function of the host that writes down what it returns."""

    def __init__(self, original: Any, written: Written) -> None:
        self.original = original
        self._written = written

    def __call__(self, *args: Any) -> Any:
        results = self.original(*args)
        # The real run is the one that counts: the first result for the same arguments stays.
        self._written.setdefault(_key(self.original, args), jax.tree.map(np.asarray, results))
        return results
