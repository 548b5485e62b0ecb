"""`var_defaults`: the default `ref` and `hijax` entries of new Variables.

Both are Flax's names for Variables that can be written from inside any function of JAX; see `array_references`.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class _Values(NamedTuple):
    hijax: bool = False
    ref: bool = False

    def changed(self, hijax: bool | None, ref: bool | None) -> _Values:
        return _Values(self.hijax if hijax is None else hijax, self.ref if ref is None else ref)


class VarDefaults(Mapping[str, bool]):
    """The defaults in force: a mapping, with its entries as attributes too."""

    def __init__(self, *, hijax: bool, ref: bool):
        self.hijax = hijax
        self.ref = ref

    def __getitem__(self, name: str) -> bool:
        return vars(self)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(vars(self))

    def __len__(self) -> int:
        return len(vars(self))

    def __repr__(self) -> str:
        return f"VarDefaults(hijax={self.hijax}, ref={self.ref})"


class _Here(threading.local):
    """The values set by the open blocks of this thread."""

    stack: tuple[_Values, ...] = ()


_here = _Here()
_everywhere = _Values()


def _set_everywhere(values: _Values) -> None:
    global _everywhere
    _everywhere = values


def current() -> _Values:
    """The defaults in force."""
    return _here.stack[-1] if _here.stack else _everywhere


class VarDefaultsContext:
    """Defaults that were set; as a context manager or decorator, for a block or a function only.

    Set inside a block of another one, they hold until that block ends; else for good.
    """

    def __init__(self, hijax: bool | None, ref: bool | None):
        self._before: tuple[_Values, tuple[_Values, ...]] | None = (_everywhere, _here.stack)
        self._values = current().changed(hijax, ref)
        if _here.stack:
            _here.stack = (*_here.stack[:-1], self._values)
        else:
            _set_everywhere(self._values)

    def _only_here(self) -> None:
        if self._before is not None:
            everywhere, _here.stack = self._before
            _set_everywhere(everywhere)
            self._before = None

    def __enter__(self) -> None:
        self._only_here()
        _here.stack = (*_here.stack, self._values)

    def __exit__(self, *exc_info: object) -> None:
        _here.stack = _here.stack[:-1]

    def __call__(self, f: F) -> F:
        """Applies the defaults while a function runs."""
        self._only_here()

        @functools.wraps(f)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self:
                return f(*args, **kwargs)

        return wrapper  # type: ignore[return-value]


def var_defaults(*, hijax: bool | None = None, ref: bool | None = None) -> VarDefaultsContext | VarDefaults:
    """Sets the default `hijax` and `ref` of new Variables; without arguments, returns the current defaults.

    Args:
        hijax: the entry of that name; None leaves it.
        ref: the entry of that name; None leaves it.

    Returns:
        A context manager and decorator, which may be ignored; without arguments, the defaults.

    Example:
        >>> from sonde import nnx
        >>> with nnx.var_defaults(ref=True):
        ...     nnx.Param(1.0).ref
        True
        >>> nnx.var_defaults()
        VarDefaults(hijax=False, ref=False)
    """
    if hijax is None and ref is None:
        return VarDefaults(**current()._asdict())
    return VarDefaultsContext(hijax, ref)
