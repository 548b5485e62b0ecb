"""A decorator for functions that will be removed, under Flax's name."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def deprecated(f: F) -> F:
    """Makes a function warn when it is called.

    Example:
        >>> import warnings
        >>> from sonde.nnx import deprecations
        >>> old = deprecations.deprecated(lambda: 3)
        >>> with warnings.catch_warnings(record=True) as seen:
        ...     warnings.simplefilter("always")
        ...     old(), seen[0].category.__name__
        (3, 'DeprecationWarning')
    """
    name = getattr(f, "__name__", repr(f))

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        warnings.warn(f"{name} is deprecated.", DeprecationWarning, stacklevel=2)
        return f(*args, **kwargs)

    return call  # pyright: ignore[reportReturnType]
