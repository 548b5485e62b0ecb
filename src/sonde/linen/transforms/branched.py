"""`nn.cond` and `nn.switch`.

All branches must leave the variables with the same structure. Sown values are an exception: see `variables/sites.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax import lax
from jax.typing import ArrayLike

from sonde.linen.modules.module import Module
from sonde.linen.transforms.lift import Bridge, Lifting, keeps_structure
from sonde.linen.variables.filters import Filter


def cond(
    pred: ArrayLike,
    true_fun: Callable[..., Any],
    false_fun: Callable[..., Any],
    mdl: Module,
    *operands: Any,
    variables: Filter = True,
    rngs: Filter = True,
) -> Any:
    """`jax.lax.cond` with functions of a module.

    Args:
        pred: Which function to run.
        true_fun: `(module, *operands) -> output`.
        false_fun: The same, with an output of the same structure.
        mdl: The module.
        *operands: Arguments for both functions.
        variables: The collections that the functions see.
        rngs: The random streams that the functions see.
    """
    lifting, (first, second), operands = _branches("cond", mdl, (true_fun, false_fun), operands, variables, rngs)
    output, changes = lax.cond(pred, first, second, *operands)
    lifting.publish(changes)
    return output


def switch(
    index: ArrayLike,
    branches: Sequence[Callable[..., Any]],
    mdl: Module,
    *operands: Any,
    variables: Filter = True,
    rngs: Filter = True,
) -> Any:
    """`jax.lax.switch` with functions of a module: runs `branches[index](mdl, *operands)`.

    All branches have outputs of the same structure. The other arguments are those of `nn.cond`.
    """
    lifting, functions, operands = _branches("switch", mdl, branches, operands, variables, rngs)
    output, changes = lax.switch(index, functions, *operands)
    lifting.publish(changes)
    return output


def _branches(
    label: str,
    mdl: Module,
    functions: Sequence[Callable[..., Any]],
    operands: tuple[Any, ...],
    variables: Filter,
    rngs: Filter,
) -> tuple[Lifting, list[Callable[..., Any]], tuple[Any, ...]]:
    bridge = Bridge(mdl, operands)
    lifting = Lifting(
        bridge.scopes, label, variables=(variables,), changes=(variables,), rngs=(rngs,), keeps_sown=keeps_structure
    )

    def pure(fn: Callable[..., Any]) -> Callable[..., Any]:
        body = bridge.body(fn)
        return lambda *operands: lifting.call(body, lifting.variables, lifting.rngs, *operands)

    return lifting, [pure(fn) for fn in functions], bridge.args
