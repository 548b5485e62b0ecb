"""Makes values again with other arrays: containers, objects and functions, also such that have themselves in them."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sonde.core.session.code_reads import is_empty

_Made = dict[int, Any]
Remake = Callable[[Sequence[Any], _Made], Any]
"""Makes a value again with other arrays; lists and other values that may occur twice are among those that are made."""


class _Plain:
    """As large as any object that has nothing but attributes."""


def can_be_filled(value: Any) -> bool:
    """Whether a copy of a value can be made first, and be filled afterwards."""
    kind = type(value)
    if kind in (list, dict, types.FunctionType):
        return True
    has_attributes_alone = kind.__basicsize__ == _Plain.__basicsize__ and kind.__itemsize__ == 0
    return has_attributes_alone and hasattr(value, "__dict__") and not hasattr(kind, "__del__")


def _with(values: Iterable[Any], remakes: Iterable[Remake | None], arrays: Sequence[Any], made: _Made) -> list[Any]:
    return [value if remake is None else remake(arrays, made) for value, remake in zip(values, remakes)]


def _unchanged(values: Iterable[Any], remakes: Sequence[Remake | None]) -> list[Any]:
    """The values that are not made again: the others must not be kept alive."""
    return [value if remake is None else None for value, remake in zip(values, remakes)]


def joined(
    values: Sequence[Any],
    remakes: Sequence[Remake | None],
    join: Callable[[list[Any]], Any],
    number: int | None = None,
) -> Remake | None:
    """Makes a value again of its parts."""
    if not any(remakes):
        return None
    kept = _unchanged(values, remakes)

    def remake(arrays: Sequence[Any], made: _Made) -> Any:
        whole = join(_with(kept, remakes, arrays, made))
        if number is not None:
            made[number] = whole
        return whole

    return remake


def filled(
    values: Sequence[Any],
    remakes: Sequence[Remake | None],
    number: int,
    empty: Callable[[], Any],
    fill: Callable[[Any, list[Any]], Any],
) -> Remake | None:
    """Makes a value again that may have itself in it: it is there before its parts are."""
    if not any(remakes):
        return None
    kept = _unchanged(values, remakes)

    def remake(arrays: Sequence[Any], made: _Made) -> Any:
        whole = made[number] = empty()
        fill(whole, _with(kept, remakes, arrays, made))
        return whole

    return remake


def fill_dict(names: tuple[Any, ...], new: dict[Any, Any], parts: list[Any]) -> None:
    """Sets the values of a dict that was empty."""
    new.update(zip(names, parts))


def function_again(
    function: types.FunctionType, values: Sequence[tuple[str, Any]], remakes: Sequence[Remake | None], number: int
) -> Remake | None:
    """Makes a function again that reads other values."""
    code, known, name, attributes = function.__code__, function.__globals__, function.__name__, function.__dict__.copy()
    are_filled = [not is_empty(cell) for cell in function.__closure__ or ()]
    n_cells, n_defaults = sum(are_filled), len(function.__defaults__ or ())
    n_before_globals = n_cells + n_defaults + len(function.__kwdefaults__ or {})
    has_own_globals = any(remakes[n_before_globals:])

    def empty() -> types.FunctionType:
        cells = tuple([types.CellType() for _ in are_filled])
        new = types.FunctionType(code, dict(known) if has_own_globals else known, name, None, cells or None)
        new.__dict__.update(attributes)
        return new

    names = [name for name, _ in values]

    def fill(new: types.FunctionType, parts: list[Any]) -> None:
        cells = [cell for cell, is_filled in zip(new.__closure__ or (), are_filled) if is_filled]
        for cell, value in zip(cells, parts):
            cell.cell_contents = value
        first, last = n_cells + n_defaults, n_before_globals
        new.__defaults__ = tuple(parts[n_cells:first]) or None
        new.__kwdefaults__ = dict(zip(names[first:last], parts[first:last])) or None
        if has_own_globals:
            new.__globals__.update(zip(names[last:], parts[last:]))

    return filled([value for _, value in values], remakes, number, empty, fill)
