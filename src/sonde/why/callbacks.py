"""Functions of the host that a program calls, when the program runs a second time to be explained.

A function that raises ends the program. Here it must not: it is noted that it raised, and zeros are returned in place
of its results. Prints are left out, because the program has printed them already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sonde import _jax


class Callbacks:
    """The functions of the host that one explained program calls.

    Attributes:
        raised: The functions that raised, with the exception.
    """

    def __init__(self) -> None:
        self.raised: list[tuple[Any, Exception]] = []
        self._safe: dict[int, tuple[Any, dict[str, Any] | None]] = {}
        self._functions: dict[int, tuple[Any, Callable[..., Any]]] = {}

    def safe(self, primitive: Any, params: dict[str, Any]) -> dict[str, Any] | None:
        """The parameters of an equation whose functions do not raise; None if the equation is to be left out."""
        known = self._safe.get(id(params))
        if known is None:
            changed = params
            if _jax.has_callbacks(primitive, params):
                changed = _jax.with_other_callbacks(primitive, params, self._function)
            known = self._safe[id(params)] = (params, changed)
        return known[1]

    def _function(self, callback: Any, types: Sequence[Any]) -> Callable[..., Any]:
        known = self._functions.get(id(callback))
        if known is None:
            known = self._functions[id(callback)] = (callback, self._without_raising(callback, types))
        return known[1]

    def _without_raising(self, callback: Any, types: Sequence[Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            try:
                if not self.raised:  # the program has ended there: what comes after it did not run
                    return callback(*args)
            except Exception as error:
                self.raised.append((callback, error))
            return tuple(np.zeros(t.shape, t.dtype) for t in types)

        return run
