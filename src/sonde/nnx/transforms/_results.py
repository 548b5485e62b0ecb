"""Results that leave a pure function in several lists, one for every axis, spec or sharding that was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sonde.nnx.transforms._lifting import Entered, Left, Taken
from sonde.nnx.transforms._prefixes import alternatives, leaf_values


class Lists:
    """The lists in which values leave a mapped function: one for every axis (or spec) that was asked for."""

    def __init__(self, who: str, what: str, out_prefix: Any, in_values: Sequence[Any]):
        self._who, self._what, self._prefix = who, what, out_prefix
        self.kinds = alternatives([out_prefix, list(in_values)])
        self.in_places = [self._place(value) for value in in_values]

    def _place(self, value: Any) -> int:
        return next(i for i, kind in enumerate(self.kinds) if kind is value or kind == value)

    def leave(self, entered: Entered, out: Any, *, always: Sequence[int] = ()) -> Left:
        """Puts the output and the changed Variables into the lists; those of `always` even if they did not change."""

        def assign(definition: Any, paths: Any, leaves: Any) -> list[int]:
            del paths
            values = leaf_values((self._prefix,), definition, leaves, who=self._who, what=self._what)
            return [self._place(value) for value in values]

        return entered.leave(out, assign=assign, change_places=self.in_places, n_lists=len(self.kinds), always=always)


def argument_values(taken: Taken, prefix: Any, default: Any, *, what: str) -> list[Any]:
    """The value of a prefix for every leaf of the arguments; keyword arguments get the default."""
    structure, n = taken.structure, taken.structure.n_args
    if structure.keywords:
        parts = list(prefix) if isinstance(prefix, (tuple, list)) else [prefix] * n
        prefix = (*parts, *([default] * len(structure.keywords)))
    return leaf_values(prefix, structure.definition, taken.leaves, who=taken.who, what=what)
