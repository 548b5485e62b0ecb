"""Results that leave a pure function in several lists, one for every axis, spec or sharding in the options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sonde.nnx.structure.walk import Walk
from sonde.nnx.transforms.leaf_values import Numbering, Part, Spread, alternatives, numbering
from sonde.nnx.transforms.lifting import Structure
from sonde.nnx.transforms.prefixes import Prefix


class Lists:
    """The lists in which values leave a mapped function; a `Placement`.

    Args:
        verb: The transform, for messages.
        structure: What the arguments are.
        leaves: Their leaves.
        arguments: The option for the arguments, such as `in_axes`, and its name.
        output: The option for the output, and its name.

    Attributes:
        in_values: The value of the option for each leaf of the arguments.
        kinds: The values that occur, one for each list.
    """

    def __init__(
        self,
        verb: str,
        structure: Structure,
        leaves: Sequence[Any],
        *,
        arguments: tuple[str, Any],
        output: tuple[str, Any],
    ):
        self._arguments = Spread(arguments[1], verb=verb, what=arguments[0])
        self._output = Spread((output[1],), verb=verb, what=output[0])
        self._definition = structure.definition
        self._given: Numbering | None = None
        self._parts: dict[int, Part] = {}
        self.in_values = self._arguments.over(structure.definition, leaves, parts=self._parts)
        self.kinds = alternatives([output[1], list(self.in_values), arguments[1]])
        self.n_lists = len(self.kinds)

    def _number(self, value: object) -> int:
        return next(i for i, kind in enumerate(self.kinds) if kind is value or kind == value)

    def of_output(self, walked: Walk) -> Sequence[int]:
        """The list of each leaf of the output."""
        if self._given is None:
            self._given = numbering(self._definition)
        values = self._output.over(walked.definition, walked.leaves, given=self._given, given_values=self.in_values)
        return list(map(self._number, values))

    def of_edit(self, walked: Walk) -> Sequence[int]:
        """The list of each new leaf of a node of the arguments: as if it had been an argument."""
        if not walked.leaves:
            return []
        argument_numbers = numbering(self._definition)
        values = self._arguments.over(
            walked.definition,
            walked.leaves,
            given=argument_numbers,
            given_values=self.in_values,
            at=self._parts[walked.definition[2]],
        )
        return list(map(self._number, values))

    def of_change(self, i: int) -> int:
        """The list of the new value of a leaf of the arguments."""
        return self._number(self.in_values[i])


def with_keywords(structure: Structure, prefix: Prefix, default: Prefix) -> Any:
    """Extends a prefix of the positional arguments to all arguments; keyword arguments get the default."""
    if not structure.keywords:
        return prefix
    parts = list(prefix) if isinstance(prefix, (tuple, list)) else [prefix] * structure.n_args
    return (*parts, *([default] * len(structure.keywords)))
