"""`compare_training` runs two train steps side by side, and finds the first step after which they are not the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax

from sonde.core import scope, sow
from sonde.tools.comparison.compare import Comparison, compare


def compare_training(f: Callable, g: Callable, **options: Any) -> Callable[[Any, Iterable[Any]], Comparison]:
    """A function that trains with `f` and with `g`, and returns after which step they differ first, and in what.

    Both start from the same state and take the same batches. The state after each step is compared array by array, as
    sites `step_0`, `step_1` and so on; sites in the steps are compared too. What rounding alone explains is measured
    over all steps together, since training amplifies it.

    Args:
        f: A train step: takes a state and a batch, and returns the new state, or a tuple of the new state and more,
            such as a loss.
        g: Another, with states of the same structure.
        **options: As in `compare`.

    Returns:
        A function of the first state and of the batches. `Comparison.first` names the step and the part of the state.

    Raises:
        ValueError: When called: there are no batches.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from sonde.tools import compare_training
        >>> def step(weight, batch, rate=0.1):
        ...     loss, gradient = jax.value_and_grad(lambda w: ((w * batch - 1) ** 2).mean())(weight)
        ...     return weight - rate * gradient, loss
        >>> def warmed_up(weight, batch):
        ...     return step(weight, batch, jnp.where(batch[0] > 2, 0.2, 0.1))
        >>> found = compare_training(step, warmed_up)(jnp.float32(0), [jnp.ones(3), jnp.full(3, 3.0), jnp.ones(3)])
        >>> found.first.path
        'step_1/state'
    """
    options = {"grads": False, **options}

    def compared(state: Any, batches: Iterable[Any]) -> Comparison:
        batches = list(batches)
        if not batches:
            raise ValueError("compare_training needs at least one batch: it compares the state after each step")
        return compare(_steps(f), _steps(g), **options)(state, batches)

    return compared


def _steps(step: Callable) -> Callable[[Any, list[Any]], tuple[Any, list[Any]]]:
    """A function that makes all steps and marks the state after each; it returns the last state, and the rest."""

    def run(state: Any, batches: list[Any]) -> tuple[Any, list[Any]]:
        beside = []
        for i, batch in enumerate(batches):
            with scope(f"step_{i}"):
                returned = step(state, batch)
                if _has_more(returned, state):
                    state, *more = returned
                    beside.append(more)
                else:
                    state = returned
                state = sow(state, "state")
        return state, beside

    return run


def _has_more(returned: Any, state: Any) -> bool:
    """Whether a step returned more than a state: a plain tuple that is not of the kind of the state before."""
    same = jax.tree.structure(returned) == jax.tree.structure(state)
    return type(returned) is tuple and bool(returned) and not same
