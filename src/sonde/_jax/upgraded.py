"""Operations that carry their own rules, as Python functions, and the call of a plain function that each stands for.

JAX's upgrade flags (`jax_scan3`, `jax_custom_vjp3`, and `jax_custom_jvp3` from 0.11 on) put such operations in place of
primitives, JAX 0.12 has `custom_root` as one, and users write their own. `plain_call` makes a function with the same
values and derivatives that JAX's other transforms, and so captures, see through.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax._src import config as _config
from jax._src import dtypes as _dtypes
from jax._src.tree_util import tracing_registry as _tracing_registry

from sonde._jax.imported import (
    CustomJVPTraced,
    CustomVJPTraced,
    Scan3,
    SymbolicZero,
    ad,
    call_hi_primitive_p,
    hijax,
    typeof,
)
from sonde._jax.jaxprs import eval_jaxpr

__all__ = ["expanded", "plain_call"]


def expanded(args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """Runs what an operation that carries its own rules stands for."""
    return list(call_hi_primitive_p.to_lojax(*args, **params))


def plain_call(operation: Any) -> Callable[..., list[Any]] | None:
    """What an operation stands for, as a function of its flat operands; None if that is not known.

    Its values are what the operation runs, its derivatives those of the operation. A rule of its own for `vmap` is not
    used: it maps what is inside.
    """
    for kind, flag, make in _FLAGGED:
        if kind is not None and isinstance(operation, kind):
            return None if operation.params.get("with_logs") else _without(flag, make(operation))
    if Scan3 is not None and isinstance(operation, Scan3):
        return None if operation.params["reverse"] else _without("jax_scan3", _scan(operation))
    has_own_reverse = _overrides(operation, "vjp_fwd") and type(operation).vjp_fwd not in _DERIVED_REVERSE
    if has_own_reverse:
        return _custom_vjp(operation)
    return _custom_jvp(operation) if _overrides(operation, "jvp") else _flat_function(operation)


def _overrides(operation: Any, name: str) -> bool:
    """Whether the class of an operation has a rule of its own."""
    base = next(cls for cls in reversed(type(operation).__mro__) if hasattr(cls, "expand"))
    return getattr(type(operation), name, None) is not getattr(base, name, None)


# Reverse rules that JAX derives from a forward one: the forward one says it all.
_DERIVED_REVERSE = [getattr(hijax, name) for name in ("_vjp_fwd_from_jvp", "_vjp_fwd_from_lin") if hasattr(hijax, name)]


def _without(flag: str, function: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    def call(*args: Any) -> list[Any]:
        with _off(flag):
            return function(*args)

    return call


@contextlib.contextmanager
def _off(flag: str) -> Iterator[None]:
    with getattr(_config, flag.removeprefix("jax_"))(False):
        yield


def _flat_function(operation: Any) -> Callable[..., list[Any]]:
    def run(*args: Any) -> list[Any]:
        return operation.out_tree.flatten_up_to(operation.expand(*operation.in_tree.unflatten(args)))

    return run


def _scan(operation: Any) -> Callable[..., list[Any]]:
    """A scan that carries nothing: what the loop carries is in Refs, which are among its constants."""
    params = operation.params
    is_row = params["extensives"]

    def run(*args: Any) -> list[Any]:
        rows = [x for x, scanned in zip(args, is_row) if scanned]

        def step(_: None, row: list[Any]) -> tuple[None, list[Any]]:
            remaining = iter(row)
            inputs = [next(remaining) if scanned else x for x, scanned in zip(args, is_row)]
            return None, eval_jaxpr(params["jaxpr"], *inputs)

        return jax.lax.scan(step, None, rows, params["length"], unroll=params["unroll"])[1]

    return run


def _custom_jvp(operation: Any) -> Callable[..., list[Any]]:
    function = jax.custom_jvp(_flat_function(operation))

    def rule(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        moved = [_zero_of_whole_number(t, x) for t, x in zip(tangents, primals)]
        outs = operation.jvp(operation.in_tree.unflatten(primals), operation.in_tree.unflatten(moved))
        values, changes = (operation.out_tree.flatten_up_to(x) for x in outs)
        return values, [ad.instantiate_zeros(t) for t in changes]

    function.defjvp(rule)
    return function


def _custom_vjp(operation: Any) -> Callable[..., list[Any]]:
    function = jax.custom_vjp(_flat_function(operation))
    trees: list[Any] = []  # of what the forward rule saves, which may be other than pytrees

    def forward(*args: Any) -> tuple[list[Any], list[Any]]:
        has_tangent = operation.in_tree.unflatten([x.perturbed for x in args])
        outs, saved = operation.vjp_fwd(has_tangent, *operation.in_tree.unflatten([x.value for x in args]))[:2]
        flat, tree = _tracing_registry.flatten(saved)
        trees[:] = [tree]
        return operation.out_tree.flatten_up_to(outs), flat

    def backward(saved: list[Any], cotangents: list[Any]) -> tuple[Any, ...]:
        zeros = [ad.Zero(c.aval) if isinstance(c, SymbolicZero) else c for c in cotangents]
        cotangent = operation.out_tree.unflatten(zeros)
        rule = getattr(operation, "vjp_bwd_retval_logs", None)  # 0.12; what is logged is refused by `plain_call`
        arguments = trees[0].unflatten(saved), cotangent
        returned = operation.vjp_bwd_retval(*arguments) if rule is None else rule(*arguments)[0]
        flat = operation.in_tree.flatten_up_to(returned)
        return tuple(_instantiated(c, aval) for c, aval in zip(flat, operation.in_avals_flat))

    function.defvjp(forward, backward, symbolic_zeros=True)
    return function


def _instantiated(cotangent: Any, aval: Any) -> Any:
    zero = ad.Zero(aval.to_tangent_aval())
    return ad.instantiate_zeros(zero if cotangent is None or type(cotangent) is ad.Zero else cotangent)


def _zero_of_whole_number(tangent: Any, primal: Any) -> Any:
    """A tangent as rules of JAX take it: that of a whole number has no numbers in it."""
    is_empty = getattr(tangent, "dtype", None) == _dtypes.float0
    return ad.Zero(typeof(primal).to_tangent_aval()) if is_empty else tangent


_FLAGGED = (
    (CustomJVPTraced, "jax_custom_jvp3", _custom_jvp),
    (CustomVJPTraced, "jax_custom_vjp3", _custom_vjp),
)
