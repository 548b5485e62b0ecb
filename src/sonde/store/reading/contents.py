"""The table of contents of a store: a table in a terminal, a tree in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sonde._array_text import human_size, indexed

if TYPE_CHECKING:
    from sonde.store.reading.reader import Store

_COLUMNS = ("kind", "row", "rows", "size")


def _title(store: Store) -> str:
    state = "" if store.finished else ", not finished"
    return f"{store.folder}: {store.n_batches} batches{state}"


def _lines(store: Store) -> list[tuple[str, tuple[str, ...]]]:
    """The path of every array, and what is said about it."""
    return [
        (a.path, (a.kind, indexed(a.dtype.name, a.shape[1:]), f"{len(a):,}", human_size(a.nbytes)))
        for a in store.arrays
    ]


def table(store: Store) -> Any:
    """The arrays of a store with their shapes and sizes, for a terminal."""
    from rich.table import Table
    from rich.text import Text

    from sonde.display import WholePaths

    contents = Table("path", *_COLUMNS, title=_title(store), title_justify="left")
    for path, cells in _lines(store):
        contents.add_row(*map(Text, (path, *cells)))
    return WholePaths(contents)


def tree(store: Store) -> str:
    """The same for a notebook."""
    from sonde.display import Leaf, tree_html

    return tree_html(_title(store), [Leaf(path, cells) for path, cells in _lines(store)], headers=_COLUMNS)
