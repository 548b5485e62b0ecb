"""The rows of a named loop, as numbers in paths.

`sonde.scope("blocks/*")` around a scan names it: a site inside is at `blocks/*/resid`, where `*` is the
number of the iteration, and a pattern such as `blocks/12/resid` chooses one of its rows, as it does in a list.

A path with a `*` for every named loop around it is called starred; with numbers in their place it is the path of a row.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sonde.core.marks.path import STAR, Pattern, glob_matches
from sonde.core.marks.site import Site

Row = tuple[int, ...]


class Within(NamedTuple):
    """The rows of some named loops in which code is part of the program.

    Attributes:
        stop: How many named loops are around the code.
        rows: The rows: a number for each of the innermost of them.
    """

    stop: int
    rows: frozenset[Row]

    def has(self, row: Row) -> bool:
        """Whether the code is part of the program in a row of these loops, and maybe of further ones inside."""
        return any(row[self.stop - len(chosen) : self.stop] == chosen for chosen in self.rows)


def starred(path: str, loop_paths: Sequence[str | None]) -> tuple[str, tuple[int, ...]]:
    """A path with a `*` for each of the named loops that it is below, and which of the loops those are.

    Args:
        path: The path.
        loop_paths: Of the loops around, the outermost first: the path of the scope that names each, without any `*`;
            None for a loop without a name.

    Example:
        >>> starred("blocks/resid", ["other", "blocks", None])
        ('blocks/*/resid', (1,))
    """
    if not loop_paths:
        return path, ()
    above = []
    # From the innermost: the positions of outer loops stay valid.
    for number, loop_path in reversed(list(enumerate(loop_paths))):
        before = loop_path and loop_path + "/"
        if before is not None and path.startswith(before):
            path = f"{before}{STAR}/{path[len(before) :]}"
            above.append(number)
    return path, tuple(reversed(above))


def unstarred(path: str) -> str:
    """A path without the `*` of named loops."""
    return "/".join(part for part in path.split("/") if part != STAR) if STAR in path else path


def row_path(path: str, row: Iterable[int]) -> str:
    """The path of a row.

    Example:
        >>> row_path("blocks/*/resid", (12,))
        'blocks/12/resid'
    """
    if not row:
        return path
    numbers = iter(row)
    return "/".join(str(next(numbers)) if part == STAR else part for part in path.split("/"))


def rows_chosen(patterns: Iterable[Pattern], site: Site, path: str, lengths: tuple[int, ...]) -> list[Row]:
    """The rows of a site in named loops that some patterns choose.

    Args:
        patterns: Globs or predicates.
        site: The site.
        path: Its starred path.
        lengths: Those of the named loops around it.
    """
    rows: set[Row] = set()
    for pattern in patterns:
        if isinstance(pattern, str):
            rows |= _rows_of_glob(pattern, path, lengths)
        else:
            rows |= {row for row in _all_rows(lengths) if pattern(site.at(row_path(path, row)))}
    return sorted(rows)


@functools.lru_cache(maxsize=4096)
def _rows_of_glob(glob: str, path: str, lengths: tuple[int, ...]) -> frozenset[Row]:
    if glob == path:  # as the capture that recorded it wrote it
        return frozenset(_all_rows(lengths))
    return frozenset(row for row in _all_rows(lengths) if glob_matches(glob, row_path(path, row)))


def _all_rows(lengths: Sequence[int]) -> Iterable[Row]:
    return itertools.product(*map(range, lengths))
