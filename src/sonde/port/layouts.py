"""The same numbers in another layout: transposed, with heads split off an axis, with axes of length one."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator

import numpy as np

from sonde.port.difference import distance

_MOST_AXES = 6
_CLOSE = 1e-3  # arrays in another order are much further apart


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """How an array is rearranged: given a shape, then transposed, then given another shape.

    Attributes:
        before: The shape before axes are transposed; None if it stays.
        axes: The order of the axes; None if it stays.
        after: The shape after that; None if it stays.
    """

    before: tuple[int, ...] | None = None
    axes: tuple[int, ...] | None = None
    after: tuple[int, ...] | None = None

    def of(self, array: np.ndarray) -> np.ndarray:
        """The array in this layout."""
        array = array if self.before is None else array.reshape(self.before)
        array = array if self.axes is None else array.transpose(self.axes)
        return array if self.after is None else array.reshape(self.after)

    def elements_of(self, array: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Some elements of the array in this layout, by their numbers in it; the array itself stays as it is."""
        shape = array.shape if self.before is None else self.before
        if self.axes is not None:
            turned = np.unravel_index(numbers, [shape[i] for i in self.axes])
            numbers = np.ravel_multi_index([turned[self.axes.index(i)] for i in range(len(shape))], shape)
        return array.ravel()[numbers]

    def inverse(self, shape: tuple[int, ...]) -> Layout:
        """The layout that takes the rearranged array back to its shape."""
        before, axes = self.before or shape, self.axes or tuple(range(len(self.before or shape)))
        turned = tuple(before[i] for i in axes)
        return Layout(
            before=turned if self.after is not None else None,
            axes=tuple(map(int, np.argsort(axes))) if self.axes is not None else None,
            after=shape if self.before is not None else None,
        )

    def __str__(self) -> str:
        parts = [] if self.before is None else [f"reshaped to {list(self.before)}"]
        parts += [] if self.axes is None else [f"transposed {self.axes}"]
        return ", ".join([*parts, *([] if self.after is None else [f"reshaped to {list(self.after)}"])])

    def code(self, name: str) -> str:
        """The rearranged array as an expression."""
        name += "" if self.before is None else f".reshape{self.before}"
        name += "" if self.axes is None else f".transpose{self.axes}"
        return name + ("" if self.after is None else f".reshape{self.after}")


def arranged(
    array: np.ndarray, like: np.ndarray, agree: Callable[[np.ndarray], bool]
) -> tuple[np.ndarray, Layout] | None:
    """An array in the layout of another one, if there is a layout in which they agree.

    Args:
        array: The array.
        like: The other one.
        agree: Whether a rearranged array agrees with `like`.

    Returns:
        The array in that layout, and the layout; None if there is no such layout.
    """
    if array.size != like.size:
        return None
    few = np.unique(np.linspace(0, max(like.size - 1, 0), 32).astype(int))
    sample = like.ravel()[few]
    for layout in _candidates(array, like.shape):
        # Most layouts are ruled out by a few elements.
        elements = layout.elements_of(array, few) if array.size else array.ravel()
        close = np.isclose(_comparable(elements), _comparable(sample), rtol=0.1, atol=1e-3, equal_nan=True)
        if not close.size or close.mean() > 0.8:
            candidate = layout.of(array)
            if agree(candidate):
                return candidate, layout
    return None


def are_arranged(array: np.ndarray, like: np.ndarray) -> bool:
    """Whether two arrays with one fingerprint are the same in some layout.

    The same numbers in another order are another value: heads that are mixed up, say.
    """
    return arranged(array, like, lambda x: distance(x, like).norm <= _CLOSE) is not None


def only_by_shape(array: np.ndarray, shape: tuple[int, ...]) -> tuple[np.ndarray, Layout] | None:
    """An array transposed to a shape, if only one transposition has that shape."""
    fitting = [axes for axes in _orders(array.ndim) if tuple(array.shape[i] for i in axes) == shape]
    if len(fitting) != 1 or array.shape == shape:
        return None
    layout = Layout(axes=fitting[0])
    return layout.of(array), layout


def _candidates(array: np.ndarray, shape: tuple[int, ...]) -> Iterator[Layout]:
    yield Layout(after=None if array.shape == shape else shape)
    for axes in _orders(array.ndim):
        fits = tuple(array.shape[i] for i in axes) == shape
        yield Layout(axes=axes, after=None if fits else shape)
    # The other way around: the second array is the one whose axes were merged.
    for axes in _orders(len(shape)):
        yield Layout(before=tuple(shape[i] for i in axes), axes=tuple(map(int, np.argsort(axes))))


def _orders(n_axes: int) -> Iterator[tuple[int, ...]]:
    if n_axes <= _MOST_AXES:
        yield from itertools.islice(itertools.permutations(range(n_axes)), 1, None)


def _comparable(x: np.ndarray) -> np.ndarray:
    return x if np.iscomplexobj(x) else x.astype(np.float64)
