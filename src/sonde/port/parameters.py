"""The arrays that go into two programs: which are the same, transposed, rows of one another, or missing."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from sonde.display import InNotebook, WholePaths
from sonde.port.difference import epsilon, wide
from sonde.port.layouts import Layout, arranged
from sonde.port.prints import Print, Prints, print_of

_MOST_LAYERS = 256


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Some rows of an array, such as one layer of a stack, or the queries of a fused projection.

    Attributes:
        rows: Their numbers.
        axis: The axis that they are on.
        dropped: Whether the axis is gone: there is one row.
        layer: Of which array of a stack they are rows; None if the array is no stack.
    """

    rows: tuple[int, ...]
    axis: int = 0
    dropped: bool = False
    layer: int | None = None

    def of(self, array: np.ndarray) -> np.ndarray:
        """These rows of an array."""
        return self._whole(array)[self._index]

    def put(self, array: np.ndarray, rows: np.ndarray) -> None:
        """Sets these rows of an array."""
        self._whole(array)[self._index] = rows

    def _whole(self, array: np.ndarray) -> np.ndarray:
        return array if self.layer is None else array[self.layer]

    @property
    def _index(self) -> tuple[Any, ...]:
        return (slice(None),) * self.axis + (self.rows[0] if self.dropped else list(self.rows),)

    def code(self, name: str) -> str:
        """These rows as an expression."""
        first, n = self.rows[0], len(self.rows)
        name = name if self.layer is None else f"{name}[{self.layer}]"
        if self.dropped:
            return f"{name}[{', '.join([':'] * self.axis + [str(first)])}]"
        step = self.rows[1] - first if n > 1 else 1
        is_slice = step > 0 and self.rows == tuple(range(first, first + n * step, step))
        wanted = f"{first}:{self.rows[-1] + 1}{f':{step}' if step > 1 else ''}" if is_slice else str(list(self.rows))
        return f"{name}[{', '.join([':'] * self.axis + [wanted])}]"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ParameterMatch:
    """An array of the first program that the second has too.

    Attributes:
        first: Its number among those of the first program.
        second: Its number among those of the second.
        part: Which rows of the second's array it is; None if it is all of it.
        of_first: Whether `part` is of the first program's array instead, and the layout as well.
        layout: How the second's array, or its rows, are rearranged.
    """

    first: int
    second: int
    part: Part | None = None
    of_first: bool = False
    layout: Layout = dataclasses.field(default_factory=Layout)

    def of(self, array: np.ndarray, *, is_first: bool) -> np.ndarray:
        """What corresponds of an array with the shape of the first's or of the second's, such as a gradient."""
        if is_first != self.of_first:
            return array
        return self.layout.of(array if self.part is None else self.part.of(array))


def match_parameters(
    first: Sequence[Any], second: Sequence[Any], prints: Sequence[Sequence[Print]] | None = None
) -> list[ParameterMatch]:
    """Pairs the arrays of two programs that have the same elements.

    First whole arrays, then rows of stacks, then rows of fused arrays.

    Args:
        first: The arrays of the first program.
        second: The arrays of the second.
        prints: The fingerprints of both, if they are known.
    """
    ours, theirs = [np.asarray(x) for x in first], [np.asarray(x) for x in second]
    matches = [ParameterMatch(i, k, layout=layout) for i, k, layout in _same_arrays(ours, theirs, prints)]
    for parts in (_rows_of_stacks, _rows_of_fused):
        used = {m.first for m in matches}, {m.second for m in matches}
        for of_first, (whole, others) in ((False, (theirs, ours)), (True, (ours, theirs))):
            left = {i: x for i, x in enumerate(others) if i not in used[of_first] and x.size > 1}
            wholes = {k: x for k, x in enumerate(whole) if k not in used[not of_first] and x.size > 1}
            for i, k, part, layout in parts(left, wholes):
                matches.append(ParameterMatch(*((k, i) if of_first else (i, k)), part, of_first, layout))
    return matches


Found = Iterator[tuple[int, int, Part, Layout]]


def _rows_of_stacks(arrays: Mapping[int, np.ndarray], stacks: Mapping[int, np.ndarray]) -> Found:
    """Arrays that are rows of others: their numbers, the row and its layout."""
    rows = [(k, row) for k, stack in stacks.items() if stack.ndim > 1 for row in range(len(stack))]
    numbers = list(arrays)
    for i, k, layout in _same_arrays([arrays[i] for i in numbers], [stacks[k][row] for k, row in rows]):
        number, row = rows[k]
        yield numbers[i], number, Part((row,), dropped=True), layout


def _rows_of_fused(arrays: Mapping[int, np.ndarray], fused: Mapping[int, np.ndarray]) -> Found:
    """Arrays that are several rows or columns of others, or of one array of a stack, in any order.

    Such as one projection of three.
    """
    for k, array in fused.items():
        n_layers = len(array) if array.ndim > 1 and len(array) <= _MOST_LAYERS else 0
        for layer in (None, *range(n_layers)):
            whole = array if layer is None else array[layer]
            smaller = {i: x for i, x in arrays.items() if x.size < whole.size and x.dtype == whole.dtype}
            for axis in range(whole.ndim if whole.ndim <= 2 else 0):
                for i, rows, layout in _rows_along(whole, axis, smaller):
                    yield i, k, Part(rows, axis, layer=layer), layout


def _rows_along(
    whole: np.ndarray, axis: int, arrays: Mapping[int, np.ndarray]
) -> Iterator[tuple[int, tuple[int, ...], Layout]]:
    """The arrays that are rows of another along an axis, the numbers of these rows, and their layout."""
    length = whole.size // whole.shape[axis]
    arrays = {i: x for i, x in arrays.items() if x.size % length == 0}
    if not arrays:
        return
    positions = {row.tobytes(): n for n, row in enumerate(np.moveaxis(whole, axis, 0).reshape(-1, length))}
    if len(positions) < whole.shape[axis]:
        return  # rows cannot be told apart
    for i, x in arrays.items():
        n = x.size // length
        for turned in (False, True):
            as_rows = x.reshape(length, n).T if turned else x.reshape(n, length)
            numbers = [positions.get(row.tobytes()) for row in np.ascontiguousarray(as_rows)]
            found = tuple(number for number in numbers if number is not None)
            if len(found) == n > 1:
                axes = (1, 0) if whole.ndim == 2 and turned == (axis == 0) else None
                shape = (length, n) if turned else (n, length)
                after = None if x.shape == (shape if whole.ndim == 2 else (n,)) else x.shape
                yield i, found, Layout(axes=axes, after=after)
                break


def _same_arrays(
    ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray], prints: Sequence[Sequence[Print]] | None = None
) -> list[tuple[int, int, Layout]]:
    """The numbers of arrays with the same elements, each once, and the layout of the second."""
    own_prints, other_prints = prints or [[print_of(x) for x in side] for side in (ours, theirs)]
    search: Prints[int] = Prints()
    for k, fingerprint in enumerate(other_prints):
        search.add(fingerprint, k)
    taken: set[int] = set()
    matches = []
    for i, (x, fingerprint) in enumerate(zip(ours, own_prints)):
        for k in search.equal_to(fingerprint):
            same = None if k in taken else arranged(theirs[k], x, functools.partial(_close, x))
            if same is not None:
                taken.add(k)
                matches.append((i, k, same[1]))
                break
    return matches


def _close(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays are the same but for their precision."""
    if a.dtype == b.dtype:
        return bool(np.array_equal(a, b)) or bool(np.array_equal(wide(a), wide(b), equal_nan=True))
    return bool(np.allclose(wide(a), wide(b), rtol=4 * epsilon(a, b), atol=0, equal_nan=True))


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ParameterMap(InNotebook):
    """How the parameters of one program are made of those of another.

    Attributes:
        matches: Which arrays correspond.
        missing: Names of the first program that the second has no counterpart of.
        surplus: Names of the second program that the first has no counterpart of.
    """

    matches: tuple[ParameterMatch, ...]
    missing: tuple[str, ...]
    surplus: tuple[str, ...]
    _first: Mapping[str, np.ndarray]
    _second: Mapping[str, np.ndarray]

    def rows(self) -> list[tuple[str, str, str]]:
        """For each match the name in the first program, that in the second, and how it is rearranged."""
        ours, theirs = list(self._first), list(self._second)
        table = []
        for m in self.matches:
            first, second = ours[m.first], theirs[m.second]
            if m.part is not None:
                first, second = (m.part.code(first), second) if m.of_first else (first, m.part.code(second))
            table.append((first, second, str(self._made(m))))
        return table

    def _made(self, m: ParameterMatch) -> Layout:
        """How the second's array, or its rows, is made of the first's, or of its rows."""
        if m.of_first:
            return m.layout
        whole = list(self._second.values())[m.second]
        return m.layout.inverse(whole.shape if m.part is None else m.part.of(whole).shape)

    def code(self) -> str:
        """A function that makes the second program's arrays of the first's, as Python."""
        ours, theirs = list(self._first), list(self._second)
        lines = ["def ported(first):", "    second = {}"]
        for number, name in enumerate(theirs):
            for m in [m for m in self.matches if m.second == number]:
                source = f"np.asarray(first[{ours[m.first]!r}])"
                source = m.part.code(source) if m.part is not None and m.of_first else source
                made = self._made(m).code(source)
                if m.part is None or m.of_first:
                    lines.append(f"    second[{name!r}] = {made}")
                    continue
                array = self._second[name]
                empty = f"    second[{name!r}] = np.empty({array.shape}, {str(array.dtype)!r})"
                lines += [] if empty in lines else [empty]
                lines.append(f"    {m.part.code(f'second[{name!r}]')} = {made}")
        lines += [f"    # nothing of the first program makes {name!r}" for name in self.surplus]
        return "\n".join([*lines, "    return second"])

    def __rich__(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        title = f"matched: {len(self.matches)}, missing: {len(self.missing)}, surplus: {len(self.surplus)}"
        table = Table("first", "second", "how", title=title)
        for row in self.rows():
            table.add_row(*map(Text, row))
        for name in self.missing:
            table.add_row(Text(name), "-", "missing in the second", style="red")
        for name in self.surplus:
            table.add_row("-", Text(name), "surplus in the second", style="red")
        return WholePaths(table)

    def __str__(self) -> str:
        lines = [f"{a} -> {b}{f': {how}' if how else ''}" for a, b, how in self.rows()]
        lines += [f"{name} -> -: missing in the second" for name in self.missing]
        return "\n".join([*lines, *[f"- -> {name}: surplus in the second" for name in self.surplus]])


def map_parameters(first: Any, second: Any) -> ParameterMap:
    """How the parameters of one program are made of those of another: which correspond, and in which layout.

    Arrays correspond if they have the same elements, whatever their names: also transposed, reshaped, as rows of a
    stack, or as rows of a fused array. Constants, such as biases that are still zero, correspond by shape.

    Args:
        first: A pytree of arrays; also one of PyTorch's tensors, such as `dict(module.named_parameters())`.
        second: Another.

    Example:
        >>> import numpy as np
        >>> from sonde.tools import map_parameters
        >>> q, k = np.arange(6.0).reshape(2, 3), np.arange(6.0, 12.0).reshape(2, 3)
        >>> found = map_parameters({"q.weight": q, "k.weight": k}, {"qk": np.concatenate([q.T, k.T], 1)})
        >>> print(found)
        k.weight -> qk[:, 2:4]: transposed (1, 0)
        q.weight -> qk[:, 0:2]: transposed (1, 0)
    """
    ours, theirs = _by_name(first), _by_name(second)
    matches = match_parameters(list(ours.values()), list(theirs.values()))
    used = {m.first for m in matches}, {m.second for m in matches}
    spare = {k: x for k, x in enumerate(theirs.values()) if k not in used[1]}
    for i, x in enumerate(ours.values()):
        alike = next((k for k, y in spare.items() if y.shape == x.shape and _close(x, y)), None)
        if i not in used[0] and alike is not None:
            matches.append(ParameterMatch(i, alike))
            del spare[alike]
            used[0].add(i)
    matches.sort(key=lambda m: (m.first, m.second))
    missing = tuple(name for i, name in enumerate(ours) if i not in used[0])
    surplus = tuple(name for k, name in enumerate(theirs) if k in spare)
    return ParameterMap(tuple(matches), missing, surplus, ours, theirs)


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
        a, b = ours[left[m.first]], theirs[right[m.second]]
        what = [w for w in (str(m.layout), f"dtype {a.dtype} against {b.dtype}" if a.dtype != b.dtype else "") if w]
        if what:
            names = left[m.first], right[m.second]
            if m.part is not None:
                names = (m.part.code(names[0]), names[1]) if m.of_first else (names[0], m.part.code(names[1]))
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


def parameters_of(program: Any) -> dict[str, np.ndarray]:
    """The parameters of a model by name: those of a PyTorch module, or the arrays of a pytree; empty for a function."""
    stored: Callable[[], Mapping[str, Any]] | None = getattr(program, "state_dict", None)
    tree = program
    if callable(stored):  # a tied weight is there under several names
        weights: Mapping[str, Any] = stored()
        tree = dict({x.data_ptr(): (name, x) for name, x in reversed(list(weights.items()))}.values())
    return {name: x for name, x in _by_name(tree).items() if x.dtype != object}


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
        return "; ".join(w for w in (str(same[1]), what) if w)
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
