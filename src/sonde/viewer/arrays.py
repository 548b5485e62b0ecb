"""The arrays that a run records, with the names of their axes, from the types of its records."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde.core import Records, arrays_in
from sonde.viewer.language import Language, guessed_axes


@dataclasses.dataclass(frozen=True)
class Array:
    """One recorded array.

    Attributes:
        path: The path of its site.
        call: Which call of the site.
        part: Which array of the pytree that was marked, from 0.
        shape: Its shape, with the axes of loops and maps in front.
        lead: The number of these axes.
        dtype: Its dtype.
        source: The line of the program.
        axes: The names of its axes.
        calls: How many calls the site has.
        leaf: Which leaf of the pytree that was marked; None if the array is the whole value.
    """

    path: str
    call: int
    part: int
    shape: tuple[int, ...]
    lead: int
    dtype: str
    source: str
    axes: tuple[str, ...]
    calls: int = 1
    leaf: int | None = None

    @property
    def bytes(self) -> int:
        """How many bytes it has."""
        return math.prod(self.shape) * itemsize(self.dtype)

    @property
    def unit_axis(self) -> int:
        """The axis of the units that are changed as one: the heads, or the last."""
        return self.axes.index("heads") if "heads" in self.axes else max(len(self.shape) - 1, 0)

    @property
    def averaged(self) -> tuple[int, ...]:
        """The axes of the value, without those of loops and maps, that its mean is taken over."""
        return tuple(axis for axis in range(len(self.inner_shape) - 1) if axis != self.unit_axis - self.lead)

    @property
    def inner_shape(self) -> tuple[int, ...]:
        """Its shape without the axes of loops and maps: what an edit sees."""
        return self.shape[self.lead :]

    @property
    def is_square(self) -> bool:
        """Whether it is queries by keys, such as attention weights."""
        return self.axes[-2:] == ("length", "keys") and self.shape[-2] == self.shape[-1]

    @property
    def length_axis(self) -> int | None:
        """The axis of the positions."""
        return self.axes.index("length") if "length" in self.axes else None


def each_array(types: Records, language: Language | None, length: int) -> Iterator[Array]:
    """Every array of records that hold types, in program order."""
    by_stack: dict[tuple[str, ...], list[Array]] = {}  # the rows of a named loop are alike: one stands for all
    for path, record in types.items():
        stack = (path,) if path in types.stacked else tuple(row.path for row in types.rows(path)) or (path,)
        if stack not in by_stack:
            by_stack[stack] = list(_arrays_of(path, record, language, length))
        yield from (dataclasses.replace(array, path=path) for array in by_stack[stack])


def _arrays_of(path: str, record: Any, language: Language | None, length: int) -> Iterator[Array]:
    for call, (value, axes) in enumerate(zip(record.values, record.axes)):
        leaves = [(leaf, x) for leaf, x in enumerate(jax.tree.leaves(value)) if arrays_in(x)]
        lead = tuple(str(axis.name or axis.kind) for axis in axes)
        for part, (leaf, x) in enumerate(leaves):
            shape = (*map(int, x.shape), *_words_of_key(x))
            inner = shape[len(axes) :]
            names = language.axes(path) if language is not None else ()
            names = names if len(names) == len(inner) else guessed_axes(inner, length)
            yield Array(
                path,
                call,
                part,
                shape,
                lead=len(lead),
                dtype=str(x.dtype),
                source=record.source,
                axes=(*lead, *names),
                calls=len(record.values),
                leaf=None if value is x else leaf,
            )


def _words_of_key(x: Any) -> tuple[int, ...]:
    """The shape of the integers that a random key is made of; nothing for an array of numbers."""
    if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return ()
    return jax.eval_shape(jax.random.key_data, x).shape[len(x.shape) :]


def as_numbers(x: Any) -> np.ndarray:
    """A recorded array as a NumPy array; a random key as its integers."""
    is_key = isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(x) if is_key else x)


def itemsize(dtype: Any) -> int:
    """How many bytes an element has."""
    try:
        return np.dtype(dtype).itemsize
    except TypeError:  # random keys
        return 8
