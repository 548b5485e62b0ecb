"""A call as a function of its arrays, so that it can be compiled whole.

A model is a pytree and may change its state when it is called. What runs here is a copy: the arrays of the function
and its arguments go through `jax.jit` as inputs, everything else is static, and no model is changed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax


@dataclasses.dataclass(frozen=True)
class Rest:
    """What is left of a pytree without its arrays: hashable, for use as a static argument.

    Attributes:
        tree: The structure.
        statics: The leaves that are no arrays, with None in the places of arrays.
    """

    tree: Any
    statics: tuple[Any, ...]

    def whole(self, arrays: Sequence[Any]) -> Any:
        """The pytree with these arrays."""
        remaining = iter(arrays)
        leaves = [next(remaining) if x is _ARRAY else x for x in self.statics]
        return jax.tree.unflatten(self.tree, leaves)


class _Array:
    """Stands for an array."""

    def __repr__(self) -> str:
        return "<array>"


_ARRAY = _Array()


def arrays_and_rest(tree: Any) -> tuple[list[Any], Rest]:
    """The arrays of a pytree, and what `Rest.whole` makes it from again."""
    leaves, structure = jax.tree.flatten(tree)
    is_array = [hasattr(x, "shape") and hasattr(x, "dtype") for x in leaves]
    arrays = [x for x, a in zip(leaves, is_array) if a]
    return arrays, Rest(structure, tuple(_ARRAY if a else x for x, a in zip(leaves, is_array)))
