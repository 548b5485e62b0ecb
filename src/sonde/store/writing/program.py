"""The program of a harvest: from a batch to the arrays that are stored.

The captured function, the conversion to the stored dtype, the mask of rows to keep and the keys of rows are one jitted
function: only what is stored is computed and leaves the device.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde._array_text import describe
from sonde.core import (
    JitByStaticPart,
    Pattern,
    Record,
    Records,
    StaticPart,
    capture,
    check_callable,
    check_patterns,
    inside_request,
    static_and_arrays,
)
from sonde.errors import StoreError
from sonde.store.format import checksums
from sonde.tools.execution.needed_iterations import only_needed


@dataclasses.dataclass(frozen=True)
class ToStore:
    """What to store of a program.

    Attributes:
        f: The function.
        patterns: Which sites.
        dtype: The stored dtype of floating-point numbers; None: unchanged.
        reduce: Applied at the sites.
        grads: Whether gradients are stored too.
        keep: From the arguments of `f` to a mask of the rows to keep.
        keys: From the arguments of `f` to a dict of arrays that identify the rows.
        inside: As in `sonde.capture`.
        compiled: Whether the program is jitted.
    """

    f: Callable[..., Any]
    patterns: tuple[Pattern, ...]
    dtype: Any = None
    reduce: Callable[[Any], Any] | None = None
    grads: bool = False
    keep: Callable[..., Any] | None = None
    keys: Callable[..., Any] | None = None
    inside: object = None
    compiled: bool = True


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True)
class BatchOutcome:
    """The arrays to store from one batch.

    Attributes:
        names: Kind and path of every array, in program order.
        arrays: The arrays.
        beyond: For every array, how many numbers do not fit the stored dtype.
        mask: Which rows to keep; None for all.
    """

    names: tuple[tuple[str, str], ...]
    arrays: tuple[Any, ...]
    beyond: Any
    mask: Any

    def tree_flatten(self) -> tuple[Any, Any]:
        """For JAX."""
        return (self.arrays, self.beyond, self.mask), self.names

    @classmethod
    def tree_unflatten(cls, names: Any, children: Any) -> BatchOutcome:
        """For JAX."""
        return cls(names, *children)


class BatchProgram:
    """Runs a program on batches, and describes it."""

    def __init__(self, wanted: ToStore) -> None:
        self.wanted = wanted
        self._jitted = JitByStaticPart(lambda rest, arrays: only_needed(functools.partial(self._outcome, rest), arrays))

    def __call__(self, batch: Any) -> BatchOutcome:
        """What to store of a batch."""
        run = self._jitted if self.wanted.compiled else self._outcome
        return run(*static_and_arrays((self.wanted.f, arguments(batch)), inside_request(self.wanted.inside)))

    def describe(self, batch: Any) -> dict[str, str]:
        """Checksums of the program, for such a batch, and of its weights."""
        n_weights = len(static_and_arrays(self.wanted.f)[1])
        rest, arrays = static_and_arrays((self.wanted.f, arguments(batch)), inside_request(self.wanted.inside))
        said = {"weights": checksums.of_arrays(arrays[:n_weights])}
        if self.wanted.compiled:
            jaxpr = self._jitted.at(rest).trace(arrays).jaxpr
            said["program"] = checksums.of_program(jaxpr)
            said["weights"] += checksums.of_arrays(x for x in jaxpr.consts if hasattr(x, "dtype"))
        return said

    def _outcome(self, rest: StaticPart, arrays: list[Any]) -> BatchOutcome:
        wanted = self.wanted
        f, args = rest.whole(arrays)
        looked_into: dict[str, Any] = {} if wanted.inside is None else {"inside": wanted.inside}
        run = capture(f, *wanted.patterns, grads=wanted.grads, reduce=wanted.reduce, **looked_into)
        _, records = run(*args)
        mask = None if wanted.keep is None else _mask(wanted.keep(*args))
        stored: dict[tuple[str, str], Any] = {}
        beyond = []
        for kind, path, array in itertools.chain(parts(records, grads=wanted.grads), _keys(wanted, args)):
            _check_rows(kind, path, array, mask)
            if (kind, path) in stored:
                raise StoreError(
                    f"harvest: two of the {kind} would be stored as {path!r}: a call is named like 'h#1', an iteration "
                    "like 'h[1]', a part of a value like 'h/key'. Give one of the sites another name"
                )
            array, lost = (array, jnp.zeros((), jnp.int32)) if kind in ("taken", "keys") else _cast(array, wanted.dtype)
            stored[kind, path] = array
            beyond.append(lost)
        if not any(kind in ("values", "grads") for kind, _ in stored):
            raise StoreError(
                "harvest: the program has no site to store; mark values with sonde.sow(value, name), or name "
                "the code to look into with inside="
            )
        return BatchOutcome(tuple(stored), tuple(stored.values()), jnp.stack(beyond), mask)


def program_for(
    verb: str, f: Callable[..., Any], patterns: Iterable[Pattern], *, dtype: Any = None, **options: Any
) -> BatchProgram:
    """The program of a call, after checking its arguments; options are those of `ToStore`."""
    check_callable(f, verb)
    stored_dtype = None if dtype is None else jnp.dtype(dtype)
    if stored_dtype is not None and jax.dtypes.canonicalize_dtype(stored_dtype) != stored_dtype:
        raise ValueError(f"{verb}(dtype={stored_dtype.name!r}): JAX has no 64-bit numbers unless jax_enable_x64 is set")
    return BatchProgram(ToStore(f, check_patterns(patterns, verb), stored_dtype, **options))


def with_first(batches: Iterable[Any], verb: str) -> tuple[Any, Iterator[Any]]:
    """The first batch, and an iterator over all of them.

    Raises:
        ValueError: There is none.
    """
    remaining = iter(batches)
    for first in remaining:
        return first, itertools.chain([first], remaining)
    raise ValueError(f"{verb}: there are no batches")


def owned(batch: Any) -> Any:
    """A batch with copies of its NumPy arrays.

    Many loaders write the next batch into the memory of this one, and a device may not have read it yet.
    """
    return jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, batch)


def arguments(batch: Any) -> tuple[Any, ...]:
    """The arguments that a batch consists of."""
    return tuple(batch) if isinstance(batch, tuple) else (batch,)


def parts(records: Records, *, grads: bool) -> Iterator[tuple[str, str, Any]]:
    """Kind, path and array of everything in records: one array per call, part of a pytree, and iteration of a loop."""
    for path, record in records.items():
        found = [("values", record.values), ("taken", record.taken)]
        if grads:
            found.append(("grads", record.grads))
        for kind, of_calls in found:
            for call, value in enumerate(of_calls):
                if value is None:
                    continue
                numbered = f"{path}#{call}" if len(of_calls) > 1 else path
                yield from _leaves(kind, numbered, value, _loops(record, call))


def _loops(record: Record, call: int) -> tuple[int, ...]:
    axes = record.axes[call] if call < len(record.axes) else ()
    return tuple(axis.size for axis in axes if axis.kind == "scan" and axis.size is not None)


def _leaves(kind: str, path: str, value: Any, loops: tuple[int, ...]) -> Iterator[tuple[str, str, Any]]:
    for keys, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
        if not hasattr(leaf, "dtype") or jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
            continue
        name = path + "".join(f"/{jax.tree_util.keystr((key,), simple=True)}" for key in keys)
        depth = len(loops) if jnp.shape(leaf)[: len(loops)] == loops else 0
        for index in itertools.product(*map(range, loops[:depth])):
            row = f"[{','.join(map(str, index))}]" if index else ""
            yield kind, name + row, jnp.asarray(leaf[index] if index else leaf)


def _keys(wanted: ToStore, args: tuple[Any, ...]) -> Iterator[tuple[str, str, Any]]:
    if wanted.keys is None:
        return
    given = wanted.keys(*args)
    if not isinstance(given, dict):
        raise TypeError(f"harvest(keys=...) must return a dict of arrays, got {type(given).__name__}")
    for name, array in given.items():
        yield "keys", str(name), jnp.asarray(array)


def _mask(mask: Any) -> Any:
    mask = jnp.asarray(mask)
    if mask.dtype != jnp.bool_ or not mask.ndim:
        raise TypeError(f"harvest(keep=...) must return a mask of booleans, got {describe(mask)}")
    return mask


def _check_rows(kind: str, path: str, array: Any, mask: Any) -> None:
    if mask is not None and array.shape[: mask.ndim] != mask.shape:
        raise StoreError(
            f"harvest: {kind} of {path!r} have shape {array.shape}, which does not begin with that of the mask that "
            f"keep= returned, {mask.shape}; leave the site out by a pattern, or reduce= it to one row per element"
        )


def _cast(array: Any, dtype: Any) -> tuple[Any, Any]:
    """The array in the stored dtype, and how many of its numbers do not fit."""
    if dtype is None or not jnp.issubdtype(array.dtype, jnp.floating):
        return array, jnp.zeros((), jnp.int32)
    cast = array.astype(dtype)
    return cast, jnp.sum(~_fits(array, cast), dtype=jnp.int32)


def _fits(array: Any, cast: Any) -> Any:
    """Which numbers a cast keeps, up to rounding: not those out of range, nor an Inf or NaN that becomes a number.

    Integers and booleans have no rounding: a fraction does not fit.
    """
    dtype = cast.dtype
    if not jnp.issubdtype(dtype, jnp.inexact):
        is_bool = dtype == jnp.bool_
        least, most = (0, 1) if is_bool else (int(jnp.iinfo(dtype).min), int(jnp.iinfo(dtype).max))
        # The number after the largest is a power of two, which every floating-point dtype has, or has as infinity.
        with np.errstate(over="ignore"):
            first, beyond = np.float64(least).astype(array.dtype), np.float64(most + 1).astype(array.dtype)
        return (array >= first) & (array < beyond) & (array == jnp.floor(array))
    back = cast.real.astype(array.dtype) if jnp.issubdtype(dtype, jnp.complexfloating) else cast.astype(array.dtype)
    half, smallest = float(jnp.finfo(dtype).eps) / 2, np.asarray(float(jnp.finfo(dtype).tiny), array.dtype)
    # Some dtypes have no infinity and take the largest number instead, some have no zero and no sign.
    near = jnp.abs(back - array) <= jnp.maximum(jnp.abs(back) * half, smallest)
    signed = (back == 0) | (jnp.sign(back) == jnp.sign(array))
    same = (back == array) | (jnp.isnan(back) & jnp.isnan(array))
    return jnp.where(jnp.isfinite(array), jnp.isfinite(back) & near & signed, same)


def what_fits(dtype: Any) -> str:
    """The numbers that a dtype has, for messages."""
    dtype = jnp.dtype(dtype)
    if dtype == jnp.bool_:
        return "0 and 1"
    if not jnp.issubdtype(dtype, jnp.inexact):
        return f"whole numbers from {int(jnp.iinfo(dtype).min)} to {int(jnp.iinfo(dtype).max)}"
    limits = jnp.finfo(dtype)
    with np.errstate(all="ignore"):
        infinity = bool(np.isinf(np.asarray(np.inf, dtype)))
    return f"up to {float(limits.max):.4g}, {'with' if infinity else 'without'} infinity"
