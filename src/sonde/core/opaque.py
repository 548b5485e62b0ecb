"""Calls that a capture cannot see into: functions of the host, and functions that were compiled ahead of time.

A site in them would be lost without a word. In a function that a traced program calls on the host (`jax.pure_callback`
and the like) the capture is told of it: the function runs as one that is looked at, where every site is an error. A
function that was compiled ahead of time says nothing of the sites that its source has; calling it is an error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from sonde import _jax
from sonde.core.context import Looking, look, looking
from sonde.errors import CaptureError


@dataclasses.dataclass(frozen=True)
class _LookedAt:
    """A function of the host, in a program that was traced while a capture ran."""

    function: Callable[..., Any]
    state: Looking

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with look(self.state):
            return self.function(*args, **kwargs)


def _looked_at(function: Any) -> Any:
    state = looking()
    return function if state is None or isinstance(function, _LookedAt) else _LookedAt(function, state)


def _refuse() -> None:
    state = looking()
    # What came with a package that is looked into is left out; what was asked for by name must not be.
    if state is not None and (state.inside is None or state.inside.names_functions()):
        raise CaptureError(
            "a captured function calls a function that was compiled ahead of time, whose program is fixed: sites in it "
            "would be missing from the records. Call the jitted function, or the compiled one outside of the capture"
        )


opaque = _jax.opaque_calls(_looked_at, _refuse)
