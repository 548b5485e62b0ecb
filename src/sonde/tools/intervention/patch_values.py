"""The handler of the tools that put other values at sites: edits that know their call and iteration.

`sonde.edit` replaces the value at a site by one rule. Here the rule also gets the call and the iteration, so that
single values of one run can be put into another.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sonde.core import InLoops, Pattern, Site, View, capture, run_with
from sonde.tools.execution.record_values import Seen


class Occurrence(NamedTuple):
    """Where a value was recorded.

    Attributes:
        path: The path of the site.
        call: Which of the calls under that path, from 0.
        iteration: The number of the iteration of each loop around it, outermost first.
        site: The site.
        view: How the value is seen there.
        lengths: The lengths of the named loops around it.
    """

    path: str
    call: int
    iteration: tuple[Any, ...]
    site: Site
    view: View
    lengths: tuple[int, ...] = ()

    def slice_of(self, array: Any, index: int) -> Any:
        """The part of a recorded array that belongs to this occurrence.

        Args:
            array: Loops and mapped axes in front.
            index: Which of the site's arrays it is.
        """
        for step in self.iteration:
            array = jax.lax.dynamic_index_in_dim(jnp.asarray(array), step, keepdims=False)
        # A record has all mapped axes; the value itself lacks those that it does not vary over.
        for position, axis in reversed(list(enumerate(self.view.axes))):
            if not axis.on_leaf(index):
                array = jax.lax.index_in_dim(array, 0, position, keepdims=False)
        return array

    def within(self, seen: Seen) -> tuple[Any, Occurrence]:
        """Where this iteration is in a record, which may have only some rows of named loops.

        Args:
            seen: A value of the record, with the axes of all loops.

        Returns:
            Whether the record has it, and the place with the numbers of the record's rows.
        """
        here: Any = True
        steps, named = list(self.iteration), []
        for i, axis in enumerate(axis for axis in seen.axes if axis.is_loop):
            if i >= len(steps) or axis.rows is None:
                continue
            named.append((i, axis.rows))
            if seen.rows is not None:  # only some rows; the axis does not say how many there are
                rows = np.asarray(axis.rows)
                here = here & jnp.any(steps[i] == rows)
                steps[i] = jnp.argmax(steps[i] == rows)
        if seen.rows is not None and len(seen.rows) < math.prod(len(rows) for _, rows in named):
            have = np.zeros([len(rows) for _, rows in named], bool)  # not every combination of these numbers
            for row in seen.rows:
                have[tuple(rows.index(n) for n, (_, rows) in zip(row, named))] = True
            here = here & jnp.asarray(have)[tuple(steps[i] for i, _ in named)]
        return here, self._replace(iteration=tuple(steps))

    def mapped(self, index: int) -> int:
        """How many mapped axes an array of the value has in front."""
        return sum(axis.on_leaf(index) for axis in self.view.axes)


Rule = Callable[[list[Any], Occurrence], list[Any]]


class Placing(InLoops):
    """Replaces the arrays of every value by what a rule makes of them."""

    def __init__(self, rule: Rule, *, depth: int = 1) -> None:
        super().__init__((), depth=depth)
        self.rule = rule

    def replace(self, arrays: list[Any], site: Site, path: str, view: View) -> list[Any]:
        """The new arrays."""
        if not view.is_value:
            return arrays
        call = self.counts.next(path)
        lengths = tuple(loop.length for loop in self.named_loops)
        return self.rule(arrays, Occurrence(path, call, self.indices, site, view, lengths))


def placed(f: Callable, rule: Rule, inside: Any = None) -> Callable:
    """`f`, with the values at all its sites replaced by a rule."""

    def with_rule(*args: Any, **kwargs: Any) -> Any:
        return run_with(lambda depth: Placing(rule, depth=depth), f, args, kwargs, edits=True, inside=inside)[0]

    return with_rule


def values_to_place(f: Callable, *patterns: Pattern, inside: Any = None) -> Callable:
    """`sonde.capture(f, *patterns)` with the values that a rule will get: Python numbers become arrays."""
    return capture(placed(f, lambda arrays, _: arrays, inside), *patterns, inside=inside)
