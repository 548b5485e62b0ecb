"""The records of a captured function up to its failure.

The exception is the user's own. It carries what was captured before it was raised; records are made from that only on
request.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from sonde import _jax
from sonde.core.interpret.items import Bundle, Item
from sonde.core.interpret.recording import Reduce
from sonde.core.interpret.seen_sites import SeenSites
from sonde.core.records.build import make_records
from sonde.core.records.record import Records

_NAME = "__sonde_seen__"


def attach_records(error: BaseException, handler: Any, reduce: Reduce | None) -> None:
    """Attaches what a handler recorded to an exception. For nested captures, that of the outermost is kept."""
    with contextlib.suppress(AttributeError):  # an exception with __slots__
        setattr(error, _NAME, (handler.items, handler.met, reduce))


def partial_records(error: BaseException) -> Records:
    """The records of a capture up to the failure that ended it.

    A function that fails while it is traced (a jitted one) has no values yet: run it under `jax.disable_jit()` to get
    them.

    Args:
        error: An exception that came out of a captured function.

    Returns:
        The records; empty if the exception did not come out of a capture, or no site ran before it.

    Example:
        >>> import jax.numpy as jnp, sonde
        >>> def f(x):
        ...     h = sonde.sow(x * 2, "h")
        ...     return h @ jnp.ones(4)
        >>> try:
        ...     sonde.capture(f)(jnp.ones(3))
        ... except TypeError as error:
        ...     print(list(sonde.partial_records(error)))
        ['h']
    """
    items, seen_sites, reduce = getattr(error, _NAME, ((), SeenSites(), None))
    return make_records([item for item in items if _is_concrete(item)], seen_sites, reduce=reduce)


def _is_concrete(item: Item | Bundle) -> bool:
    arrays: Sequence[Any] = item.arrays
    return not any(isinstance(x, _jax.Tracer) for x in arrays)
