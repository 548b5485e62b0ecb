"""The trace level at which an object was made, and whether it is the current one: the names of `nnx.tracers`."""

from __future__ import annotations

from typing import Any

from sonde._jax import trace_level


def current_jax_trace() -> Any:
    """An object that identifies the current trace: equal until a transform begins or ends."""
    return trace_level()


class TraceState:
    """The trace level at which it was made.

    Example:
        >>> import jax
        >>> from sonde.nnx import tracers
        >>> outside = tracers.TraceState()
        >>> outside.is_valid(), jax.jit(lambda: outside.is_valid())().item()
        (True, False)
    """

    __slots__ = ("_level",)

    def __init__(self) -> None:
        self._level = trace_level()

    @property
    def jax_trace(self) -> Any:
        """The trace level."""
        return self._level

    def is_valid(self) -> bool:
        """Whether this level is the current one."""
        return self._level is trace_level()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TraceState) and self._level is other._level

    def __hash__(self) -> int:
        return id(self._level)

    def __repr__(self) -> str:
        return f"TraceState({self._level!r})"
