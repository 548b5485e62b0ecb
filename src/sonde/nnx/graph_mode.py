"""Which mode functions run in when they are not told: `graph=True` (shared references) or `graph=False` (trees).

Set for good by calling `set_graph_mode(False)`, for a block with `with set_graph_mode(False):` (in this thread only),
or for a whole process with the environment variable NNX_GRAPH_MODE.
"""

from __future__ import annotations

import contextlib
import os
import threading

_local = threading.local()


def _from_environment() -> bool:
    text = os.environ.get("NNX_GRAPH_MODE", "true").strip().lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off"):
        return False
    raise ValueError(f"The environment variable NNX_GRAPH_MODE is '{text}'; it must be 'true' or 'false'.")


_everywhere = _from_environment()


class set_graph_mode(contextlib.AbstractContextManager["set_graph_mode"]):
    """Sets the mode of functions that are not given `graph=`.

    Example:
        >>> from sonde import nnx
        >>> with nnx.set_graph_mode(False):
        ...     nnx.set_graph_mode.current_value()
        False
    """

    def __init__(self, value: bool, /):
        global _everywhere
        if not isinstance(value, bool):
            raise TypeError(f"set_graph_mode takes True or False, got {value!r}.")
        self._value = value
        self._before = _everywhere
        _everywhere = value

    def __enter__(self) -> set_graph_mode:
        global _everywhere
        _everywhere = self._before  # only this block, only this thread
        _local.stack = (*getattr(_local, "stack", ()), self._value)
        return self

    def __exit__(self, *exc_info: object) -> None:
        _local.stack = _local.stack[:-1]

    @staticmethod
    def current_value() -> bool:
        """The mode that holds here."""
        stack = getattr(_local, "stack", ())
        return stack[-1] if stack else _everywhere


class set_graph_updates(contextlib.AbstractContextManager["set_graph_updates"]):
    """Accepts False, which is how Sonde always works: transforms give back changed Variables, not changed structure."""

    def __init__(self, value: bool, /):
        if value:
            raise ValueError(
                "graph_updates=True is not supported: a transformed function cannot change the structure of its "
                "arguments. Return new objects from it, or change the structure outside of it."
            )

    def __exit__(self, *exc_info: object) -> None:
        return None

    @staticmethod
    def current_value() -> bool:
        """Always False."""
        return False


def resolve(graph: bool | None) -> bool:
    """What `graph=` means, None being the current mode."""
    return set_graph_mode.current_value() if graph is None else graph
