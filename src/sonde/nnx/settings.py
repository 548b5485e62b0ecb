"""Settings: a value that is set for good, or for a block or a function in one thread.

`with use(x):` and `@use(x)` begin with the call `use(x)`, which sets the value for good. So a `SettingChange` sets it
when it is made, and undoes that if it is then used for a block or a function.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
NOT_SET: Any = object()
F = TypeVar("F", bound=Callable[..., Any])


class _Here(threading.local):
    """The values set by the open blocks of this thread."""

    stack: tuple[Any, ...] = ()


class Setting(Generic[T]):
    """A value for all threads, and values for the open blocks of each thread.

    Args:
        default: Gives the value as long as none was set.

    Attributes:
        set_for_good: The value that was set outside of blocks, or `NOT_SET`.
    """

    def __init__(self, default: Callable[[], T]):
        self._default = default
        self.set_for_good: Any = NOT_SET
        self._here = _Here()

    @property
    def everywhere(self) -> T:
        """The value outside of blocks."""
        return self._default() if self.set_for_good is NOT_SET else self.set_for_good

    @property
    def current(self) -> T:
        """The value in force here."""
        stack = self._here.stack
        return stack[-1] if stack else self.everywhere

    @property
    def blocks(self) -> tuple[T, ...]:
        """The values of the open blocks of this thread, the outermost first."""
        return self._here.stack

    @blocks.setter
    def blocks(self, values: tuple[T, ...]) -> None:
        self._here.stack = values


class SettingChange(Generic[T]):
    """A change of a setting: for a block if it is entered, for calls if it decorates a function, else for good.

    Args:
        setting: The setting.
        value: Its new value.
        in_block: Whether a call inside a block sets the value until that block ends instead of for good.
    """

    def __init__(self, setting: Setting[T], value: T, *, in_block: bool = False):
        self._setting = setting
        self._value = value
        blocks = setting.blocks
        self._in_block = in_block and bool(blocks)
        self._before: Any = blocks if self._in_block else setting.set_for_good
        self._for_good = True
        if self._in_block:
            setting.blocks = (*blocks[:-1], value)
        else:
            setting.set_for_good = value

    def _only_here(self) -> None:
        if self._for_good:
            self._for_good = False
            setattr(self._setting, "blocks" if self._in_block else "set_for_good", self._before)

    def __enter__(self) -> Any:
        self._only_here()
        self._setting.blocks = (*self._setting.blocks, self._value)
        return self._value

    def __exit__(self, *exc_info: object) -> None:
        self._setting.blocks = self._setting.blocks[:-1]

    def __call__(self, f: F) -> F:
        """Applies the value while a function runs."""
        self._only_here()

        @functools.wraps(f)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self:
                return f(*args, **kwargs)

        return wrapper  # type: ignore[return-value]
