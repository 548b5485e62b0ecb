"""Operations that JAX's upgrade flags put in place of its primitives: each stands for a call that is known without.

JAX has `jax_scan3`, `jax_custom_vjp3` and, from 0.11 on, `jax_custom_jvp3`, which are off. With one on, a call becomes
an operation that carries its own rules, as Python functions. `plain_call` makes the call again, as JAX does where the
flag is off. A `Scan3` keeps what it carries in Refs, which captures do not follow: sites in it are an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax._src import config as _config
from jax._src import dtypes as _dtypes
from jax._src.tree_util import tracing_registry as _tracing_registry

from sonde._jax.imported import CustomJVPTraced, CustomVJPTraced, Scan3, SymbolicZero, ad, call_hi_primitive_p, typeof

__all__ = ["expanded", "flag_of", "plain_call"]


def expanded(args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """Runs what an operation that carries its own rules stands for."""
    return list(call_hi_primitive_p.to_lojax(*args, **params))


def flag_of(operation: Any) -> str | None:
    """The flag that made JAX use an operation; None if no flag did."""
    kinds = (Scan3, "jax_scan3"), (CustomJVPTraced, "jax_custom_jvp3"), (CustomVJPTraced, "jax_custom_vjp3")
    return next((flag for kind, flag in kinds if kind is not None and isinstance(operation, kind)), None)


def plain_call(operation: Any) -> Callable[..., list[Any]] | None:
    """What an operation stands for, as a function of its flat operands; None if that is not known."""
    flag = flag_of(operation)
    makers = {"jax_custom_jvp3": _custom_jvp, "jax_custom_vjp3": _custom_vjp}
    if flag not in makers or operation.params.get("with_logs"):
        return None

    def call(*args: Any) -> list[Any]:
        with _off(flag):
            return makers[flag](operation)(*args)

    return call


@contextlib.contextmanager
def _off(flag: str) -> Iterator[None]:
    with getattr(_config, flag.removeprefix("jax_"))(False):
        yield


def _flat_function(operation: Any) -> Callable[..., list[Any]]:
    def run(*args: Any) -> list[Any]:
        return operation.out_tree.flatten_up_to(operation.expand(*operation.in_tree.unflatten(args)))

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
        given = trees[0].unflatten(saved), cotangent
        found = operation.vjp_bwd_retval(*given) if rule is None else rule(*given)[0]
        flat = operation.in_tree.flatten_up_to(found)
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
