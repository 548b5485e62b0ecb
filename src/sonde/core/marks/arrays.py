"""The arrays among the leaves of a pytree, and the pytree without them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np


def as_now(x: Any) -> Any:
    """A copy of a NumPy array that can change; any other value as it is.

    The program may write into the array later. A record holds what was in it at its site. And JAX reads an array that
    it is given only once, even if it is used again later, so it must not be given the program's own.
    """
    if not isinstance(x, np.ndarray) or not (x.flags.writeable or isinstance(x.base, np.ndarray)):
        return x
    return x.copy()


@jax.tree_util.register_pytree_node_class
class UnsortedDict(dict[Any, Any]):
    """A dict whose keys cannot be sorted, as JAX wants them to be: it is taken apart in the order of its entries."""

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """For JAX."""
        return tuple(self.values()), tuple(self)

    @classmethod
    def tree_unflatten(cls, keys: tuple[Any, ...], values: Sequence[Any]) -> UnsortedDict:
        """For JAX."""
        return cls(zip(keys, values))


def flattened(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], Any]:
    """`jax.tree.flatten`, also of dicts whose keys cannot be sorted."""
    try:
        return jax.tree.flatten(tree, is_leaf=is_leaf)
    except ValueError:
        return jax.tree.flatten(_with_unsorted(tree), is_leaf=is_leaf)


def _with_unsorted(tree: Any) -> Any:
    """A pytree with `UnsortedDict` in place of dicts whose keys cannot be sorted, in dicts, lists and tuples."""
    if type(tree) in (list, tuple):
        return type(tree)(map(_with_unsorted, tree))
    if type(tree) is not dict:
        return tree
    converted = {key: _with_unsorted(value) for key, value in tree.items()}
    try:
        sorted(converted)
    except TypeError:
        return UnsortedDict(converted)
    return converted


def is_array_like(x: Any) -> bool:
    """Whether something has a shape and a dtype: an array, a tracer, a `jax.ShapeDtypeStruct`."""
    return hasattr(x, "shape") and hasattr(x, "dtype")


def arrays_in(tree: Any) -> list[Any]:
    """The leaves of a pytree that are arrays or placeholders for arrays."""
    return [x for x in jax.tree.leaves(tree) if is_array_like(x)]


def shapes_in(tree: Any) -> Any:
    """A pytree with a `jax.ShapeDtypeStruct` in the place of every array."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype) if is_array_like(x) else x, tree)


class _Array:
    """Stands for an array."""

    def __repr__(self) -> str:
        return "<array>"


_ARRAY = _Array()


@dataclasses.dataclass(frozen=True)
class WithoutArrays:
    """What is left of a pytree without its arrays: hashable, if its other leaves are.

    Attributes:
        tree: The structure.
        leaves: The leaves, with a placeholder for each array.
    """

    tree: Any
    leaves: tuple[Any, ...]

    def whole(self, arrays: Sequence[Any]) -> Any:
        """The pytree with these arrays."""
        remaining = iter(arrays)
        return jax.tree.unflatten(self.tree, [next(remaining) if x is _ARRAY else x for x in self.leaves])


def split_arrays(tree: Any, is_array: Callable[[Any], bool] = is_array_like) -> tuple[list[Any], WithoutArrays]:
    """The arrays in a pytree, and the rest, from which `whole` makes it again.

    Example:
        >>> import numpy as np
        >>> arrays, rest = split_arrays({"x": np.ones(2), "name": "text"})
        >>> len(arrays), rest.whole(["other"])
        (1, {'name': 'text', 'x': 'other'})
    """
    leaves, structure = jax.tree.flatten(tree)
    are_arrays = [is_array(x) for x in leaves]
    without_arrays = WithoutArrays(structure, tuple(_ARRAY if a else x for x, a in zip(leaves, are_arrays)))
    return [x for x, a in zip(leaves, are_arrays) if a], without_arrays
