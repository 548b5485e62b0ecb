"""`nnx.cond` and `nnx.switch`: one of several functions, chosen while the program runs.

All branches of a conditional must return the same form of output. If any branch changes a Variable, all of them return
it; a branch that leaves it alone returns it unchanged. To know which Variables these are, every branch is traced once
before the conditional is made; the conditional then reuses that trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.typing import ArrayLike

from sonde._array_text import describe
from sonde.nnx.transforms.lifting import Taken, take
from sonde.nnx.transforms.options import mode, named_after
from sonde.nnx.transforms.outcome import Outcome, PureResult
from sonde.nnx.variable.variable import Variable, value_in


def cond(
    pred: ArrayLike | Variable[Any],
    true_fun: Callable[..., Any],
    false_fun: Callable[..., Any],
    *operands: Any,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """`jax.lax.cond` for functions of Modules and Variables.

    Args:
        pred: A boolean scalar.
        true_fun: Called if it is True.
        false_fun: Called if it is False; must return the same form of output.
        *operands: Arguments of either. Variables that the chosen function changes are changed.
        graph: True allows shared references, False demands trees. None: the current mode.
        graph_updates: Whether the function may change the structure of its arguments. None: the current setting.

    Raises:
        TypeError: The two functions return different forms of output.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> count = nnx.Variable(jnp.array(0))
        >>> def step(count):
        ...     count[...] += 1
        >>> nnx.cond(True, step, lambda count: None, count)
        >>> int(count)
        1
    """
    taken = take("cond", mode(graph, graph_updates), operands, label="operands")
    branches = _agreed(taken, {"true_fun": true_fun, "false_fun": false_fun})
    return taken.settle(jax.lax.cond(value_in(pred), *branches, taken.values))


def switch(
    index: ArrayLike | Variable[Any],
    branches: Sequence[Callable[..., Any]],
    *operands: Any,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """`jax.lax.switch` for functions of Modules and Variables.

    Args:
        index: Which function to call; it is clamped to the range of `branches`.
        branches: The functions; they must return the same form of output.
        *operands: Arguments of any of them. Variables that the chosen function changes are changed.
        graph: True allows shared references, False demands trees. None: the current mode.
        graph_updates: Whether the function may change the structure of its arguments. None: the current setting.

    Raises:
        TypeError: The functions return different forms of output.
    """
    taken = take("switch", mode(graph, graph_updates), operands, label="operands")
    agreed = _agreed(taken, {f"branches[{i}]": f for i, f in enumerate(branches)})
    return taken.settle(jax.lax.switch(value_in(index), agreed, taken.values))


def _agreed(taken: Taken, branches: dict[str, Callable[..., Any]]) -> list[Callable[..., PureResult]]:
    """Pure functions that all return the output and the Variables that any of them changes."""
    # jit caches the traces, so each of the user's functions runs once
    traced = [jax.jit(taken.pure(f), inline=True) for f in branches.values()]
    shapes = [jax.eval_shape(branch, taken.values) for branch in traced]
    outcomes = [outcome for _, outcome in shapes]
    first_name, *names = branches
    for name, outcome, shape in zip(names, outcomes[1:], shapes[1:]):
        if outcome.definition != outcomes[0].definition:
            raise TypeError(
                f"nnx.{taken.verb}: all branches must return the same form of output, but these differ: {first_name} "
                f"returns {_shown(taken, shapes[0])}, {name} returns {_shown(taken, shape)}."
            )
        if outcome.edits != outcomes[0].edits:
            raise TypeError(
                f"nnx.{taken.verb}: {first_name} and {name} change the structure of the operands (their attributes, "
                f"static values or submodules) in different ways. Do the same in all branches, or do it outside."
            )
    # All branches return whatever one of them changes, because a conditional has one form of output.
    changed = sorted({i for outcome in outcomes for i in outcome.changed})
    # Metadata are known while tracing, so those of any branch that changed them count for all.
    metadata = {}
    for outcome in outcomes:
        metadata.update({i: m for i, m in zip(outcome.changed, outcome.metadata) if m is not None})
    agreed = outcomes[0].with_changes(changed, metadata)
    return [_returning(branch, agreed) for branch in traced]


def _returning(branch: Callable[[list[Any]], PureResult], agreed: Outcome) -> Callable[[list[Any]], PureResult]:
    def pure(values: list[Any]) -> PureResult:
        (outs,), outcome = branch(values)
        n = len(outcome.lists_of_leaves)
        news = dict(zip(outcome.changed, outs[n:]))
        return ([*outs[:n], *(news.get(i, values[i]) for i in agreed.changed)],), agreed

    return named_after(branch, pure)


def _shown(taken: Taken, result: PureResult) -> str:
    """The output of a branch, for messages: its containers, with types in place of arrays."""
    out = taken.output(result)
    return repr(jax.tree.map(lambda x: describe(x) if hasattr(x, "dtype") else x, out))
