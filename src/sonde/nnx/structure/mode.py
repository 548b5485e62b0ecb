"""The default mode of functions that are not given `graph=` or `graph_updates=`.

`graph=True` allows shared references, `graph=False` demands trees. `graph_updates=True` lets a transformed function
change the structure of its arguments. The defaults are set permanently by calling `set_graph_mode(False)`; for a block,
in this thread, by `with set_graph_mode(False):`; for the calls of a function, in this thread, by the decorator
`@set_graph_mode(False)`. If they are not set, the flags `nnx_graph_mode` and `nnx_graph_updates` of `flax.config` count
(`sonde.flax.flags`).
"""

from __future__ import annotations

from typing import ClassVar

from sonde.flax.flags import flag
from sonde.nnx.settings import Setting, SettingChange


class _Mode(SettingChange[bool]):
    """A mode that can be called, entered, and used as a decorator."""

    _of_class: ClassVar[Setting[bool]]

    def __init_subclass__(cls, *, flag_name: str) -> None:
        cls._of_class = Setting(lambda: flag(flag_name))

    def __init__(self, value: bool, /):
        if not isinstance(value, bool):
            raise TypeError(f"{type(self).__name__} takes True or False, got {value!r}.")
        super().__init__(self._of_class, value)

    @classmethod
    def current_value(cls) -> bool:
        """The value in force here."""
        return cls._of_class.current


class set_graph_mode(_Mode, flag_name="nnx_graph_mode"):
    """Sets the mode of functions that are not given `graph=`.

    Example:
        >>> from sonde import nnx
        >>> with nnx.set_graph_mode(False):
        ...     nnx.set_graph_mode.current_value()
        False
    """


class set_graph_updates(_Mode, flag_name="nnx_graph_updates"):
    """Sets whether transforms that are not given `graph_updates=` let functions change the structure of arguments.

    Example:
        >>> from sonde import nnx
        >>> @nnx.set_graph_updates(False)
        ... def current():
        ...     return nnx.set_graph_updates.current_value()
        >>> current(), nnx.set_graph_updates.current_value()
        (False, True)
    """


def resolve(graph: bool | None) -> bool:
    """The value of `graph=`, or the current mode if it is None."""
    return set_graph_mode.current_value() if graph is None else graph


def resolve_updates(graph_updates: bool | None) -> bool:
    """The value of `graph_updates=`, or the current setting if it is None."""
    return set_graph_updates.current_value() if graph_updates is None else graph_updates
