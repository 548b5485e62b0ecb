"""What was seen before a captured function failed.

The exception is the user's own; what had been captured when it was raised goes with it, and is put together only when
it is asked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from sonde import _jax
from sonde.core.collect import Reduce
from sonde.core.handler import Met
from sonde.core.item import Bundle, Item
from sonde.core.record import Records
from sonde.core.record_making import make_records

_NAME = "__sonde_seen__"


def remember(error: BaseException, handler: Any, reduce: Reduce | None) -> None:
    """Lets an exception carry what a handler had recorded. Of nested captures, the outermost one's is kept."""
    with contextlib.suppress(AttributeError):  # an exception with __slots__
        setattr(error, _NAME, (handler.items, handler.met, reduce))


def records_before(error: BaseException) -> Records:
    """The records of a capture up to the failure that ended it.

    Of a function that fails while it is traced (a jitted one) there are no values yet: run it under
    `jax.disable_jit()` to have them.

    Args:
        error: An exception that came out of a captured function.

    Returns:
        The records; none, if the exception did not come out of a capture, or nothing was seen before.

    Example:
        >>> import jax.numpy as jnp, sonde
        >>> def f(x):
        ...     h = sonde.sow(x * 2, "h")
        ...     return h @ jnp.ones(4)
        >>> try:
        ...     sonde.capture(f)(jnp.ones(3))
        ... except TypeError as error:
        ...     print(list(sonde.records_before(error)))
        ['h']
    """
    items, met, reduce = getattr(error, _NAME, ((), Met(), None))
    return make_records([item for item in items if _is_concrete(item)], met, reduce=reduce)


def _is_concrete(item: Item | Bundle) -> bool:
    arrays: Sequence[Any] = item.arrays
    return not any(isinstance(x, _jax.Tracer) for x in arrays)
