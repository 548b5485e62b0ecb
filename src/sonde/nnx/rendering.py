"""How objects are shown: `repr`, `nnx.display`, and the protocol of treescope for notebooks.

Objects show their attributes line by line, with the number and the size of their Variables after the opening
parenthesis. An object shown a second time is shortened to `Name(...)`. Inside Modules, arrays show shape and type; a
Variable or State shown by itself shows the numbers.

Each class says what it shows in methods of `Rendered`, so this file knows none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np


class Rendered:
    """An object of this package: shown as text by `repr`, and as a tree by treescope."""

    __slots__ = ()

    #: Whether arrays show their numbers when the object is shown by itself.
    _nnx_shows_numbers = True

    def _nnx_text(self, writer: Writer, depth: int) -> str:
        """The text of the object, `depth` levels inside of others."""
        raise NotImplementedError

    def _nnx_attributes(self) -> Mapping[str, object]:
        """What treescope shows inside of the object."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return Writer(numbers=self._nnx_shows_numbers).write(self, 0)

    def __treescope_repr__(self, path: str | None, subtree_renderer: Callable[..., Any]) -> Any:
        import treescope  # type: ignore[import-not-found]  # called by treescope, so it is installed

        return treescope.repr_lib.render_object_constructor(
            object_type=type(self),
            attributes={str(k): v for k, v in self._nnx_attributes().items()},
            path=path,
            subtree_renderer=subtree_renderer,
        )


class Writer:
    """Writes a value and what is in it.

    Args:
        numbers: Whether arrays show their numbers.
    """

    def __init__(self, *, numbers: bool):
        self._numbers = numbers
        self._shown: set[int] = set()

    def is_first(self, value: object) -> bool:
        """Whether this object is shown for the first time."""
        is_first = id(value) not in self._shown
        self._shown.add(id(value))
        return is_first

    def write(self, value: object, depth: int) -> str:
        """The text of a value."""
        if isinstance(value, Rendered):
            return value._nnx_text(self, depth)
        if type(value) is dict and value and _holds_objects(value.values()):
            return self.mapping(value, depth)
        if isinstance(value, (list, tuple)) and type(value) in (list, tuple) and value and _holds_objects(value):
            opening, closing = ("[", "]") if type(value) is list else ("(", ",)" if len(value) == 1 else ")")
            return self.lines(opening, [self.write(v, depth + 1) for v in value], closing, depth)
        if not self._numbers and isinstance(value, (jax.Array, np.ndarray)) and value.size > 1:
            return f"{type(value).__name__.removesuffix('Impl')}(shape={value.shape}, dtype={value.dtype})"
        return repr(value).replace("\n", "\n" + "  " * depth)

    def mapping(self, mapping: Mapping[Any, Any], depth: int, note: str = "") -> str:
        """The text of a mapping, with a note after the opening brace."""
        entries = [f"{k!r}: {self.write(v, depth + 1)}" for k, v in mapping.items()]
        return self.lines("{", entries, "}", depth, note)

    @staticmethod
    def lines(opening: str, entries: list[str], closing: str, depth: int, note: str = "") -> str:
        """Entries, each on a line, between an opening with a note and a closing."""
        if not entries:
            return f"{opening}{closing}"
        indent = "  " * (depth + 1)
        return f"{opening}{note}\n{indent}" + f",\n{indent}".join(entries) + f"\n{'  ' * depth}{closing}"


def _holds_objects(values: Iterable[object]) -> bool:
    return any(isinstance(v, (Rendered, dict, list, tuple)) for v in values)


def display(*args: Any) -> None:
    """Shows objects: with treescope in a notebook if it is installed, else as text."""
    in_notebook = False
    try:
        from IPython import get_ipython  # type: ignore[import-not-found]

        in_notebook = get_ipython() is not None
    except ImportError:
        pass
    for arg in args:
        if in_notebook:
            try:
                import treescope  # type: ignore[import-not-found]
            except ImportError:
                print(arg)
                continue
            treescope.display(arg, ignore_exceptions=True, autovisualize=True)
        else:
            print(arg)
