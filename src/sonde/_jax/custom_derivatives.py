"""Functions with custom derivatives: binding them again, and what their rules take and return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax._src import dtypes as _dtypes
from jax._src import linear_util as _lu
from jax._src.interpreters import partial_eval as _pe
from jax._src.tree_util import tracing_registry as _tracing_registry

from sonde._jax.imported import (
    Jaxpr,
    Primitive,
    RematTraced,
    SymbolicZero,
    ad,
    custom_vmap_p,
    remat_has_barriers,
    typeof,
)
from sonde._jax.jaxprs import ONE_JAXPR_CLASS

__all__ = [
    "bind_checkpoint",
    "bind_custom_derivative",
    "bind_custom_vmap",
    "call_again",
    "call_beside",
    "instantiated_zero_tangent",
    "is_unknown_tangent",
    "is_zero_tangent",
    "outputs_of_forward_rule",
    "with_zero_cotangents",
    "without_forwarding",
]


def _structure_like(other: Any, tree: Any) -> Any:
    """The structure of a pytree, in the registry that another structure is from: versions use different ones here."""
    try:
        jax.tree_util.treedef_tuple((other,))
    except ValueError:
        return _tracing_registry.flatten(tree)[1]
    return jax.tree.structure(tree)


def bind_custom_vmap(args: Sequence[Any], params: dict[str, Any], jaxpr: Jaxpr, rule: Callable[..., Any]) -> list[Any]:
    """Calls a closed jaxpr, with a function to be called if a `vmap` around maps it, in place of another call.

    Args:
        args: The arguments.
        params: The parameters of the other call.
        jaxpr: The jaxpr.
        rule: The function.
    """
    return custom_vmap_p.bind(
        *args,
        call=jaxpr,
        rule=rule,
        in_tree=_structure_like(params["in_tree"], tuple(args)),
        out_tree=jax.tree.structure([0] * len(jaxpr.out_avals)),
    )


def bind_checkpoint(operation: Any, jaxpr: Jaxpr, args: Sequence[Any]) -> list[Any]:
    """Calls a jaxpr under `jax.checkpoint` with the options of another call, with further arguments in front."""
    if not remat_has_barriers:
        return list(RematTraced(jaxpr, operation.policy)(*args))
    barriers = operation.prevent_cse
    if not isinstance(barriers, bool):
        barriers = (*[False] * (len(args) - len(barriers)), *barriers)
    return list(RematTraced(jaxpr, operation.policy, barriers)(*args))


def bind_custom_derivative(
    primitive: Primitive, args: Sequence[Any], functions: Sequence[tuple[Callable, Any]], **params
):
    """Binds a custom_jvp or custom_vjp call; `functions` pairs each new function with the wrapped one it stands for."""
    names = functions[0][1].debug_info.arg_names
    more_args = names is not None and len(names) != len(args)
    wrapped = []
    for function, original in functions:
        function.stands_for = original  # type: ignore[attr-defined]
        info = original.debug_info.with_unknown_names() if more_args else original.debug_info
        wrapped.append(_lu.wrap_init(function, debug_info=info))
    return primitive.bind(*args, subfuns=tuple(wrapped), **params)


def call_again(wrapped: Any, *args: Any) -> Any:
    """Calls a `WrappedFun` that may have been called before (it stores side results once)."""
    for store in wrapped.stores:
        if store:
            store.reset()
    return wrapped.call_wrapped(*args)


def call_beside(wrapped: Any, *args: Any) -> Any:
    """Calls a `WrappedFun` only for its side effects: its stored results stay as they were."""
    stores = _stores(wrapped)
    before = [(store.val,) if store else () for store in stores]
    try:
        return call_again(wrapped, *args)
    finally:
        for store, values in zip(stores, before):
            store.reset()
            for value in values:
                store.store(value)


def _stores(wrapped: Any) -> list[Any]:
    """The stores of a `WrappedFun`, and of those that it runs in turn if captures are nested."""
    own = [store for store in wrapped.stores if store is not None]
    inner = getattr(wrapped.f, "stands_for", None)
    return own if inner is None else [*own, *_stores(inner)]


def instantiated_zero_tangent(value: Any, *, symbolic: bool) -> Any:
    """A zero tangent for `value`, in the form that a custom_jvp rule must return."""
    aval = typeof(value).to_tangent_aval()
    return SymbolicZero(aval) if symbolic else ad.instantiate_zeros(ad.Zero(aval))


def outputs_of_forward_rule(
    outs: Sequence[Any], operands: Sequence[Any], out_trees: Callable[[], Any]
) -> tuple[list[Any], list[Any]]:
    """From the flat outputs of a custom_vjp forward rule: all residuals, and the outputs of the function.

    JAX leaves out residuals that are operands of the call and remembers their positions.
    """
    _, _, forwarded = out_trees()
    n = sum(position is None for position in forwarded)
    returned = iter(outs[:n])
    residuals = [next(returned) if position is None else operands[position] for position in forwarded]
    return residuals, list(outs[n:])


def without_forwarding(out_trees: Callable[[], Any]) -> Callable[[], Any]:
    """Tells JAX that a forward rule returns all its residuals.

    Positions among the operands would be wrong where JAX evaluates a function partially, because it adds operands in
    front.
    """

    def trees() -> Any:
        out_tree, residual_tree, forwarded = out_trees()
        return out_tree, residual_tree, [None] * len(forwarded)

    return trees


def with_zero_cotangents(result: Any, types: Sequence[Any]) -> Any:
    """What a custom_vjp backward rule returned, with zeros at the end for more operands, of these types."""
    zeros = [ad.Zero(t.to_tangent_aval()) for t in types]
    if not zeros:
        return result
    if ONE_JAXPR_CLASS:  # the rule also returns what it logged
        cotangents, logged = result
        return [*cotangents, *zeros], logged
    return [*result, *zeros]


def is_zero_tangent(tangent: Any) -> bool:
    """Whether a tangent is symbolically zero or has no numbers in it."""
    return type(tangent) is ad.Zero or getattr(tangent, "dtype", None) == _dtypes.float0


def is_unknown_tangent(value: Any) -> bool:
    """Whether a value is a tangent in reverse mode, which a rule computes with and which never has numbers."""
    return isinstance(value, _pe.JaxprTracer) and not value.is_known()
