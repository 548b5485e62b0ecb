"""Which elements of its operands an element of an equation's result is computed from.

A mask of -Inf, a buffer that starts as Inf, a NaN that a `where` discards: whole arrays cannot tell these from the
value that did the damage, single elements can. For most operations the elements follow from the operation. Operations
that only move data are run on the numbers of the elements in place of their values. For all others it is found by
trial: suspicious elements are replaced by harmless numbers until the result changes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from sonde import _jax
from sonde.programs.flat import Equation
from sonde.programs.running import run_equation

Index = tuple[int, ...]
Shape = tuple[int, ...]
Part = tuple[int | slice, ...]

_HARMLESS = (0.5, 2.0)  # inside the domain of every function, one or the other


class Read(NamedTuple):
    """Elements of an operand.

    Attributes:
        operand: Which operand.
        part: For each axis, the position or the range of positions.
    """

    operand: int
    part: Part


def elements_read(
    equation: Equation, output: int, index: Index, operands: Sequence[np.ndarray], shape: Shape
) -> list[Read] | None:
    """The elements that one element of a result is computed from; None if only a trial can tell.

    Args:
        equation: The equation.
        output: Which of its results.
        index: Which element.
        operands: The values that went in.
        shape: The shape of the result.
    """
    name = equation.name
    if name == "select_n":
        which = operands[0]
        case = int(which[index] if which.ndim else which)
        return [Read(1 + case, index)]
    facts = _jax.facts_of(name)
    if facts.one_by_one:
        return [Read(output, index)]
    if facts.elementwise:
        # An axis of length 1 may stand for a longer one.
        return [Read(i, tuple(0 if n == 1 else k for n, k in zip(x.shape, index))) for i, x in enumerate(operands)]
    rule = _RULES.get(name)
    if rule is not None:
        return rule(equation.params, index, operands, shape)
    return _moved(equation, output, index, operands) if _jax.only_moves(name) else None


def _reduction(params: dict[str, Any], index: Index, operands: Sequence[np.ndarray], shape: Shape) -> list[Read]:
    kept = iter(index)
    part = tuple(slice(None) if axis in params["axes"] else next(kept) for axis in range(operands[0].ndim))
    return [Read(0, part)]


def _cumulative(params: dict[str, Any], index: Index, operands: Sequence[np.ndarray], shape: Shape) -> list[Read]:
    axis = params["axis"]
    along = slice(index[axis], None) if params["reverse"] else slice(0, index[axis] + 1)
    return [Read(0, (*index[:axis], along, *index[axis + 1 :]))]


def _reshape(params: dict[str, Any], index: Index, operands: Sequence[np.ndarray], shape: Shape) -> list[Read]:
    flat = int(np.ravel_multi_index(index, shape)) if shape else 0
    return [Read(0, tuple(map(int, np.unravel_index(flat, operands[0].shape))) if operands[0].ndim else ())]


def _squeeze(params: dict[str, Any], index: Index, operands: Sequence[np.ndarray], shape: Shape) -> list[Read]:
    kept, gone = iter(index), {d % operands[0].ndim for d in params["dimensions"]}
    return [Read(0, tuple(0 if axis in gone else next(kept) for axis in range(operands[0].ndim)))]


def _broadcast(params: dict[str, Any], index: Index, operands: Sequence[np.ndarray], shape: Shape) -> list[Read]:
    sizes = operands[0].shape
    return [Read(0, tuple(0 if n == 1 else index[d] for n, d in zip(sizes, params["broadcast_dimensions"])))]


def _transpose(params: dict[str, Any], index: Index, operands: Sequence[np.ndarray], shape: Shape) -> list[Read]:
    part = [0] * len(index)
    for position, axis in zip(index, params["permutation"]):
        part[axis] = position
    return [Read(0, tuple(part))]


def _rev(params: dict[str, Any], index: Index, operands: Sequence[np.ndarray], shape: Shape) -> list[Read]:
    sizes = operands[0].shape
    return [Read(0, tuple(n - 1 - i if d in params["dimensions"] else i for d, (i, n) in enumerate(zip(index, sizes))))]


def _slice(params: dict[str, Any], index: Index, operands: Sequence[np.ndarray], shape: Shape) -> list[Read]:
    strides = params["strides"] or (1,) * len(index)
    return [Read(0, tuple(first + i * step for first, i, step in zip(params["start_indices"], index, strides)))]


def _dynamic_slice(params: dict[str, Any], index: Index, operands: Sequence[np.ndarray], shape: Shape) -> list[Read]:
    sizes = operands[0].shape
    firsts = [min(max(int(at), 0), n - m) for at, n, m in zip(operands[1 : 1 + len(sizes)], sizes, shape)]
    return [Read(0, tuple(first + i for first, i in zip(firsts, index)))]


def _concatenate(params: dict[str, Any], index: Index, operands: Sequence[np.ndarray], shape: Shape) -> list[Read]:
    axis, position = params["dimension"], index[params["dimension"]]
    for number, operand in enumerate(operands):
        if position < operand.shape[axis]:
            return [Read(number, (*index[:axis], position, *index[axis + 1 :]))]
        position -= operand.shape[axis]
    raise AssertionError("an element outside of all operands")


def _pad(params: dict[str, Any], index: Index, operands: Sequence[np.ndarray], shape: Shape) -> list[Read]:
    part = []
    for i, n, (low, _, between) in zip(index, operands[0].shape, params["padding_config"]):
        position, left = divmod(i - low, between + 1)
        if left or not 0 <= position < n:
            return [Read(1, ())]
        part.append(position)
    return [Read(0, tuple(part))]


def _dot(params: dict[str, Any], index: Index, operands: Sequence[np.ndarray], shape: Shape) -> list[Read]:
    (left_summed, right_summed), (left_batch, right_batch) = params["dimension_numbers"]
    n_batch = len(left_batch)
    reads, used = [], n_batch
    for number, summed, batch in ((0, left_summed, left_batch), (1, right_summed, right_batch)):
        part: list[int | slice] = []
        for axis in range(operands[number].ndim):
            if axis in summed:
                part.append(slice(None))
            elif axis in batch:
                part.append(index[list(batch).index(axis)])
            else:
                part.append(index[used])
                used += 1
        reads.append(Read(number, tuple(part)))
    return reads


_RULES: dict[str, Callable[..., list[Read]]] = {
    **dict.fromkeys(("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "argmax", "argmin"), _reduction),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), _cumulative),
    "reshape": _reshape,
    "squeeze": _squeeze,
    "broadcast_in_dim": _broadcast,
    "transpose": _transpose,
    "rev": _rev,
    "slice": _slice,
    "dynamic_slice": _dynamic_slice,
    "concatenate": _concatenate,
    "pad": _pad,
    "dot_general": _dot,
    "iota": lambda params, index, operands, shape: [],
    "random_bits": lambda params, index, operands, shape: [],
}


def _moved(equation: Equation, output: int, index: Index, operands: Sequence[np.ndarray]) -> list[Read] | None:
    """The element that an operation which only moves data has put there; none if it has filled in a number."""
    firsts, numbered, total = [], list(operands), 0
    for position in _jax.moved_operands(equation.name, output, len(operands)):
        size = operands[position].size
        firsts.append((total, position))
        numbered[position] = np.arange(total, total + size, dtype=np.int32).reshape(operands[position].shape)
        total += size
    if total >= 2**31:
        return None
    params = equation.params
    if "fill_value" in params:
        params = {**params, "fill_value": -1}
    moving = dataclasses.replace(equation, params=params)
    moved = np.asarray(run_equation(moving, [jnp.asarray(x) for x in numbered])[output])[index]
    if moved < 0:
        return []
    first, position = max((f, p) for f, p in firsts if f <= moved)
    return [Read(position, tuple(map(int, np.unravel_index(int(moved) - first, operands[position].shape))))]


def elements_by_trial(
    run: Callable[[Sequence[Any]], Any],
    operands: Sequence[np.ndarray],
    severities: Sequence[np.ndarray],
    wanted: int,
    is_bad: Callable[[Any], bool],
) -> list[Read]:
    """One element of an operand to which the state of a result is due, found by trial; none if it is due to no element.

    Args:
        run: Computes the element of the result from the operands.
        operands: The values that went in.
        severities: How bad each of their elements is; 0 if it is fine.
        wanted: How bad the element of the result is: elements of the operands that are as bad come first.
        is_bad: Whether an element of the result is still bad.
    """
    suspects = [(i, int(flat)) for i, s in enumerate(severities) for flat in np.flatnonzero(np.asarray(s) > 0)]

    def bad_with(kept: Sequence[tuple[int, int]]) -> bool:
        results = []
        for number in (*_HARMLESS, None):
            healed = []
            for i, (x, s) in enumerate(zip(operands, severities)):
                if not np.any(s):
                    healed.append(x)
                    continue
                mask = (np.asarray(s) > 0).ravel()
                for operand, flat in kept:
                    if operand == i:
                        mask[flat] = False
                harmless = _identity(x) if number is None else np.asarray(number, x.dtype)
                healed.append(np.where(mask.reshape(x.shape), harmless, x))
            results.append(is_bad(run(healed)))
        return all(results)

    if not suspects or bad_with([]):
        return []
    same = [(i, flat) for i, flat in suspects if np.asarray(severities[i]).ravel()[flat] == wanted]
    group = same if same and bad_with(same) else suspects
    while len(group) > 1:
        middle = len(group) // 2
        halves = group[:middle], group[middle:]
        half = next((half for half in halves if bad_with(half)), None)
        if half is None:  # it takes elements of both halves: the first stands for them
            break
        group = list(half)
    operand, flat = group[0]
    shape = operands[operand].shape
    return [Read(operand, tuple(map(int, np.unravel_index(flat, shape))) if shape else ())]


def _identity(x: np.ndarray) -> np.ndarray:
    """Ones on the diagonal of the last two axes: a matrix of one number has no inverse and no Cholesky factor."""
    if x.ndim < 2:
        return np.ones((), x.dtype)
    return np.broadcast_to(np.eye(*x.shape[-2:], dtype=x.dtype), x.shape)
