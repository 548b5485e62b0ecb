"""The arrays among the leaves of a pytree."""

from __future__ import annotations

from typing import Any

import jax


def is_array_like(x: Any) -> bool:
    """Whether something has a shape and a dtype: an array, a tracer, a `jax.ShapeDtypeStruct`."""
    return hasattr(x, "shape") and hasattr(x, "dtype")


def arrays_in(tree: Any) -> list[Any]:
    """The leaves of a pytree that are arrays or placeholders for arrays."""
    return [x for x in jax.tree.leaves(tree) if is_array_like(x)]
