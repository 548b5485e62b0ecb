"""The table of contents of a store, for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sonde.store.reading.reader import Store


def table(store: Store) -> Any:
    """The arrays of a store with their shapes and sizes."""
    from rich.table import Table

    state = "" if store.finished else ", not finished"
    title = f"{store.folder}: {store.n_batches} batches{state}"
    made = Table(title=title, title_justify="left")
    for name in ("kind", "path", "row", "dtype"):
        made.add_column(name, overflow="fold")
    for name in ("rows", "MB"):
        made.add_column(name, justify="right")
    for array in store.arrays:
        row = ", ".join(map(str, array.shape[1:]))
        cells = array.kind, array.path, row, array.dtype.name, f"{len(array):,}", f"{array.nbytes / 1e6:,.1f}"
        made.add_row(*cells)
    return made
