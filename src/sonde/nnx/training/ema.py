"""Averages of parameters over training steps."""

from __future__ import annotations

from typing import Any, TypeVar

import jax.numpy as jnp

from sonde.nnx.modules.attribute_status import data
from sonde.nnx.modules.pytree import Pytree
from sonde.nnx.states.filters import Filter
from sonde.nnx.states.state import to_flat_state
from sonde.nnx.states.traversals import show_path
from sonde.nnx.structure import split_merge
from sonde.nnx.structure.build import build
from sonde.nnx.structure.mapping import clone
from sonde.nnx.structure.mode import resolve
from sonde.nnx.structure.walk import walk
from sonde.nnx.variable.variable import value_in

A = TypeVar("A")


class EMA(Pytree):
    """An exponential moving average of a model's Variables.

    Args:
        params: The model, or a State of it, to start from.
        decay: The weight of the old average in a step.
        only: Which Variables.
        graph: True allows shared references in the model, False demands a tree. None: the current mode.

    Attributes:
        params: The average, a State of Variables.

    Example:
        >>> from sonde import nnx
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> ema = nnx.EMA(model, decay=0.9)
        >>> averaged = ema.apply_to(model)
        >>> model.bias[...] += 1
        >>> ema.update(model)
        >>> averaged.bias[...]  # shares its Variables with `ema`
        Array([0.1, 0.1, 0.1], dtype=float32)
    """

    def __init__(self, params: Any, decay: float, *, only: Filter = ..., graph: bool | None = None):
        self.graph = graph
        self.decay = decay
        self.filter = only
        self.params = data(clone(split_merge.state(params, only, graph=graph)))

    def update(self, updates: Any) -> None:
        """Moves the average toward new values.

        Args:
            updates: The model, or a State of it.

        Raises:
            ValueError: It lacks a Variable that is averaged.
        """
        new_leaves = dict(to_flat_state(split_merge.state(updates, self.filter, graph=self.graph)))
        for path, average in to_flat_state(self.params):
            if path not in new_leaves:
                raise ValueError(
                    f"EMA.update was given no Variable at {show_path(path)}, which it averages; it was given "
                    f"{', '.join(map(show_path, list(new_leaves)[:5])) or 'none'}."
                )
            # The average keeps its dtype, whatever that of the new value is.
            old_average = average.get_value()
            value = value_in(new_leaves[path])
            average.set_value(jnp.asarray(self.decay * old_average + (1 - self.decay) * value, old_average.dtype))

    def apply_to(self, model: A) -> A:
        """A new model like the given one, which stays as it is, with the averages in place of its Variables.

        The averages are shared: later updates change the new model too.
        """
        walked = walk(model, graph=resolve(self.graph), verb="EMA.apply_to")
        averages = dict(to_flat_state(self.params))
        leaves = [averages.get(path, leaf) for path, leaf in zip(walked.paths, walked.leaves)]
        return build(walked.definition, leaves)
