"""The arrays that go into two programs: which are the same, transposed, rows of one another, or missing."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from sonde.port.difference import epsilon, wide
from sonde.port.layouts import arranged
from sonde.port.prints import Prints, print_of


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ParameterMatch:
    """An array of the first program that the second has too.

    Attributes:
        first: Its number among those of the first program.
        second: Its number among those of the second.
        row: Which row of the second's array it is; None if it is all of it.
        of_first: Whether `row` is a row of the first program's array instead.
        how: How the second's array, or its row, is rearranged; `""` if it is not.
    """

    first: int
    second: int
    row: int | None = None
    of_first: bool = False
    how: str = ""

    def arrays(self, first: Sequence[Any], second: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        """The corresponding parts of two lists of arrays, such as gradients."""
        a, b = np.asarray(first[self.first]), np.asarray(second[self.second])
        if self.row is not None:
            a, b = (a[self.row], b) if self.of_first else (a, b[self.row])
        return a, b


def match_parameters(first: Sequence[Any], second: Sequence[Any]) -> list[ParameterMatch]:
    """Pairs the arrays of two programs that have the same elements; each once, in order."""
    ours, theirs = [np.asarray(x) for x in first], [np.asarray(x) for x in second]
    matches = [ParameterMatch(i, k, how=how) for i, k, how in _same_arrays(ours, theirs)]
    used = {m.first for m in matches}, {m.second for m in matches}
    for of_first, (whole, others) in ((False, (theirs, ours)), (True, (ours, theirs))):
        left = [i for i in range(len(others)) if i not in used[of_first]]
        stacks = [k for k in range(len(whole)) if k not in used[not of_first] and whole[k].ndim > 1]
        rows = [(k, row) for k in stacks for row in range(len(whole[k]))]
        for i, k, how in _same_arrays([others[i] for i in left], [whole[k][row] for k, row in rows]):
            number, row = rows[k]
            pair = (number, left[i]) if of_first else (left[i], number)
            matches.append(ParameterMatch(*pair, row, of_first, how))
    return matches


def _same_arrays(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> list[tuple[int, int, str]]:
    """The numbers of arrays with the same elements, each once, and how the second is rearranged."""
    prints: Prints[int] = Prints()
    for k, x in enumerate(theirs):
        prints.add(print_of(x), k)
    taken: set[int] = set()
    matches = []
    for i, x in enumerate(ours):
        for k in prints.equal_to(print_of(x)):
            same = None if k in taken else arranged(theirs[k], x, functools.partial(_close, x))
            if same is not None:
                taken.add(k)
                matches.append((i, k, same[1]))
                break
    return matches


def _close(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays are the same but for their precision."""
    tolerance = 4 * epsilon(a, b) if a.dtype != b.dtype else 0.0
    return bool(np.allclose(wide(a), wide(b), rtol=tolerance, atol=0, equal_nan=True))


@dataclasses.dataclass(frozen=True, slots=True)
class ParameterDifference:
    """What is not the same in the parameters of two programs.

    Attributes:
        first: The name in the first program; `""` if it has none.
        second: The name in the second program; `""` if it has none.
        what: What is different: missing, surplus, transposed, permuted, another dtype, other values.
    """

    first: str
    second: str
    what: str

    def __str__(self) -> str:
        return f"{self.first or '-'} | {self.second or '-'}: {self.what}"


def compare_parameters(first: Any, second: Any) -> tuple[ParameterDifference, ...]:
    """What is not the same in two trees of parameters: first by name, then by value.

    What only has another name, or is stacked in one tree and a list in the other, is no difference. Constants, such as
    biases that are still zero, are matched by shape.

    Args:
        first: A pytree of arrays; also one of PyTorch's tensors, such as `dict(module.named_parameters())`.
        second: Another.

    Returns:
        One for each parameter that is missing, surplus, transposed, permuted, of another dtype, or has other values.
    """
    ours, theirs = _by_name(first), _by_name(second)
    differences = []
    shared = [name for name in ours if name in theirs]
    for name in shared:
        what = _described(ours[name], theirs[name])
        if what:
            differences.append(ParameterDifference(name, name, what))
    left = [name for name in ours if name not in theirs]
    right = [name for name in theirs if name not in ours]
    matches = match_parameters([ours[name] for name in left], [theirs[name] for name in right])
    for m in matches:
        a, b = m.arrays([ours[n] for n in left], [theirs[n] for n in right])
        what = [w for w in (m.how, f"dtype {a.dtype} against {b.dtype}" if a.dtype != b.dtype else "") if w]
        if what:
            row = "" if m.row is None else f"[{m.row}]"
            names = left[m.first] + row * m.of_first, right[m.second] + row * (not m.of_first)
            differences.append(ParameterDifference(*names, "; ".join(what)))
    known = {left[m.first] for m in matches}, {right[m.second] for m in matches}
    # Arrays that are constant can only be told apart by their shapes.
    spare = [name for name in right if name not in known[1]]
    for name in [name for name in left if name not in known[0]]:
        same = [other for other in spare if not _described(ours[name], theirs[other])]
        if same:
            spare.remove(same[0])
        else:
            differences.append(ParameterDifference(name, "", f"missing in the second: {_type(ours[name])}"))
    differences += [ParameterDifference("", name, f"surplus in the second: {_type(theirs[name])}") for name in spare]
    return tuple(differences)


def _by_name(tree: Any) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    names = [jax.tree_util.keystr(keys, simple=True, separator="/") for keys, _ in leaves]
    return {name: _array(leaf) for name, (_, leaf) in zip(names, leaves)}


def _array(leaf: Any) -> np.ndarray:
    detach = getattr(leaf, "detach", None)  # a tensor of PyTorch
    return np.asarray(leaf if detach is None else detach().cpu())


def _type(x: np.ndarray) -> str:
    return f"{x.dtype}{list(x.shape)}"


def _described(a: np.ndarray, b: np.ndarray) -> str:
    """What is different in two arrays of one name; `""` if nothing is."""
    what = f"dtype {a.dtype} against {b.dtype}" if a.dtype != b.dtype else ""
    same = arranged(b, a, functools.partial(_close, a))
    if same is not None:
        return "; ".join(w for w in (same[1], what) if w)
    if a.size == b.size and np.array_equal(np.sort(wide(a).ravel()), np.sort(wide(b).ravel())):
        return _permuted(a, b) or "the same elements in another order"
    if a.shape != b.shape:
        return f"shape {list(a.shape)} against {list(b.shape)}"
    most = np.abs(wide(a) - wide(b)).max()
    return f"{int(np.sum(a != b))} of {a.size} elements differ, by up to {most:.3g}"


def _permuted(a: np.ndarray, b: np.ndarray) -> str:
    """Along which axis one array is a permutation of the other."""
    if a.shape != b.shape:
        return ""
    for axis in range(a.ndim):
        rows = [np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1) for x in (a, b)]
        orders = [np.lexsort(x.T[::-1]) for x in rows]
        if np.array_equal(rows[0][orders[0]], rows[1][orders[1]]):
            return f"permuted along axis {axis}"
    return ""
