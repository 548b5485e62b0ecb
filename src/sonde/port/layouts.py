"""The same numbers in another layout: transposed, with heads split off an axis, with axes of length one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np

_MOST_AXES = 6


def arranged(array: np.ndarray, like: np.ndarray, agree: Callable[[np.ndarray], bool]) -> tuple[np.ndarray, str] | None:
    """An array in the layout of another one, if there is a layout in which they agree.

    Args:
        array: The array.
        like: The other one.
        agree: Whether a rearranged array agrees with `like`.

    Returns:
        The array in that layout, and how to get it; None if there is no such layout.
    """
    if array.size != like.size:
        return None
    few = np.unique(np.linspace(0, max(like.size - 1, 0), 32).astype(int))
    sample = like.ravel()[few]
    for candidate, how in _candidates(array, like.shape):
        # Most layouts are ruled out by a few elements.
        close = np.isclose(
            _comparable(candidate.ravel()[few]), _comparable(sample), rtol=0.1, atol=1e-3, equal_nan=True
        )
        if close.mean() > 0.8 and agree(candidate):
            return candidate, how
    return None


def only_by_shape(array: np.ndarray, shape: tuple[int, ...]) -> tuple[np.ndarray, str] | None:
    """An array transposed to a shape, if only one transposition has that shape."""
    fitting = [axes for axes in _orders(array) if tuple(array.shape[i] for i in axes) == shape]
    if len(fitting) != 1 or array.shape == shape:
        return None
    return array.transpose(fitting[0]), f"transposed {fitting[0]}"


def _candidates(array: np.ndarray, shape: tuple[int, ...]) -> Iterator[tuple[np.ndarray, str]]:
    if array.shape == shape:
        yield array, ""
    else:
        yield array.reshape(shape), f"reshaped to {list(shape)}"
    for axes in _orders(array):
        turned = array.transpose(axes)
        if turned.shape == shape:
            yield turned, f"transposed {axes}"
        else:
            yield turned.reshape(shape), f"transposed {axes}, reshaped to {list(shape)}"
    # The other way around: the second array is the one whose axes were merged.
    for axes in itertools.permutations(range(len(shape))) if len(shape) <= _MOST_AXES else ():
        if axes == tuple(sorted(axes)):
            continue
        before = np.argsort(axes)
        merged = tuple(shape[i] for i in axes)
        yield (
            array.reshape(merged).transpose(before),
            f"reshaped to {list(merged)}, transposed {tuple(map(int, before))}",
        )


def _orders(array: np.ndarray) -> Iterator[tuple[int, ...]]:
    if array.ndim <= _MOST_AXES:
        for axes in itertools.permutations(range(array.ndim)):
            if axes != tuple(range(array.ndim)):
                yield axes


def _comparable(x: np.ndarray) -> np.ndarray:
    return x if np.iscomplexobj(x) else x.astype(np.float64)
