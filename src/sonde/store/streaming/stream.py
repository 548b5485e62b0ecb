"""`stream`: minibatches of rows from a program while it runs, without a store.

A pool of rows is filled with values from the sites; minibatches are drawn from it at random, and when it is half empty
it is filled again. This spreads the rows of one batch, which resemble one another, over many minibatches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from sonde._renames import accepts_old_keywords
from sonde.core import Pattern
from sonde.errors import StoreError
from sonde.store.writing.program import BatchOutcome, BatchProgram, program_for, what_fits


@accepts_old_keywords("sonde.store.stream")
def stream(
    f: Callable[..., Any],
    batches: Iterable[Any],
    size: int,
    *patterns: Pattern,
    shuffle: bool = False,
    seed: int = 0,
    window: int | None = None,
    row_axes: int = 1,
    dtype: Any = None,
    reduce: Callable[[Any], Any] | None = None,
    inside: object = None,
    keep: Callable[..., Any] | None = None,
) -> Iterator[dict[str, np.ndarray]]:
    """Yields minibatches of values at a program's sites while it runs, for training on more data than fits on a disk.

    Args:
        f: Any function that `sonde.capture` takes.
        batches: Inputs: each a tuple of arguments, or one argument. May be endless.
        size: How many rows a minibatch has. Rows left over at the end are dropped.
        *patterns: Which sites; all by default. They must have the same number of rows.
        shuffle: Whether rows are drawn at random; otherwise they keep their order.
        seed: For the order of shuffled rows.
        window: How many rows are in memory and mixed; sixteen minibatches by default.
        row_axes: How many of the first axes of a value count as rows, as in `Store.batches`.
        dtype: The dtype of floating-point numbers; unchanged by default.
        reduce: A function of the value, applied at the site first.
        inside: Functions or modules that mark no values themselves; see `sonde.capture`.
        keep: A function of the arguments of `f` that returns a mask of the rows to keep, as in `harvest`.

    Example:
        >>> import jax.numpy as jnp, sonde
        >>> from sonde import store
        >>> f = lambda x: sonde.sow(x * 2, "h")
        >>> made = store.stream(f, (jnp.full((6, 3), i) for i in range(4)), 8, "h", shuffle=True)
        >>> [batch["h"].shape for batch in made]
        [(8, 3), (8, 3), (8, 3)]
    """
    if size < 1 or row_axes < 1:
        raise ValueError(f"stream: size and row_axes must be at least 1, got size={size}, row_axes={row_axes}")
    program = program_for("stream", f, patterns, dtype=dtype, reduce=reduce, keep=keep, inside=inside)
    return _dealt(program, batches, size, seed if shuffle else None, max(window or 16 * size, size), row_axes)


def _dealt(
    program: BatchProgram, batches: Iterable[Any], size: int, seed: int | None, window: int, row_axes: int
) -> Iterator[dict[str, np.ndarray]]:
    drawing = None if seed is None else np.random.default_rng(abs(seed))
    pool: dict[str, np.ndarray] = {}
    held, least = 0, size if drawing is None else max(size, window // 2)  # below this, the pool is filled again
    for batch in batches:
        new = _rows(program(batch), row_axes)
        pool = {name: np.concatenate([pool[name], x]) for name, x in new.items()} if pool else new
        held = len(next(iter(pool.values())))
        if held < window:
            continue
        if drawing is not None:
            order = drawing.permutation(held)
            pool = {name: x[order] for name, x in pool.items()}
        while held >= least:
            yield {name: x[:size].copy() for name, x in pool.items()}
            pool = {name: x[size:] for name, x in pool.items()}
            held -= size
    if held and drawing is not None:
        order = drawing.permutation(held)
        pool = {name: x[order] for name, x in pool.items()}
    for start in range(0, held - size + 1, size):
        yield {name: x[start : start + size].copy() for name, x in pool.items()}


def _rows(outcome: BatchOutcome, row_axes: int) -> dict[str, np.ndarray]:
    arrays, beyond, mask = jax.device_get((outcome.arrays, outcome.beyond, outcome.mask))
    found = {}
    for (kind, path), array, lost in zip(outcome.names, arrays, beyond):
        if kind != "values":
            continue
        if lost:
            told = f"{array.dtype.name} ({what_fits(array.dtype)})"
            raise StoreError(f"stream: {int(lost)} numbers of {path!r} do not fit {told}")
        lead = row_axes if mask is None else mask.ndim
        found[path] = array[mask] if mask is not None else array.reshape(-1, *array.shape[lead:])
    if len({len(x) for x in found.values()}) != 1:
        counts = {path: len(x) for path, x in found.items()}
        raise StoreError(f"stream: the sites do not have the same rows: {counts}; choose some by patterns")
    return found
