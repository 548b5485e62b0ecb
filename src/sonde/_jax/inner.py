"""JAX's inside: imports, and every difference between the JAX versions that Sonde supports (0.10 to 0.12).

What `jax.extend`, `jax.interpreters` and `jax._src` promise nothing about is named here, once.
`tests/test_private_jax.py` lists it with what is expected of it. Nothing here changes JAX, and nothing knows what a
site is.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax._src import config as _config
from jax._src import core as _core
from jax._src import custom_derivatives as _custom_derivatives
from jax._src import dtypes as _dtypes
from jax._src import effects as _effects
from jax._src import linear_util as _lu
from jax._src import source_info_util as _source_info
from jax._src import util as _util
from jax._src.ad_checkpoint import remat_p
from jax._src.custom_batching import custom_vmap_p
from jax._src.interpreters import batching as _batching
from jax._src.interpreters import partial_eval as _pe
from jax._src.lax.control_flow.conditionals import cond_p
from jax._src.lax.control_flow.loops import scan_p, while_p
from jax._src.pjit import jit_p
from jax._src.shard_map import shard_map_p
from jax._src.sharding_impls import UNSPECIFIED
from jax.interpreters import ad, batching, mlir

try:  # 0.11 and later
    from jax._src import flattree as _flattree  # pyright: ignore[reportAttributeAccessIssue]
except ImportError:
    _flattree = None

__all__ = [
    "UNSPECIFIED",
    "Effect",
    "ExtendedDType",
    "Literal",
    "Origin",
    "PjitFunction",
    "Primitive",
    "SymbolicZero",
    "Trace",
    "Tracer",
    "Var",
    "ad",
    "add_equation",
    "added_amount",
    "allow_effect",
    "ambient_mesh",
    "batching",
    "become",
    "bind_custom_derivative",
    "bind_shard_map",
    "call_again",
    "call_beside",
    "close_jaxpr",
    "cond_p",
    "copy_of_tracer",
    "count_names",
    "current_trace",
    "custom_vmap_p",
    "eval_jaxpr",
    "eval_trace",
    "evaluated_late",
    "evaluates_early",
    "first_axis_like",
    "flat_tree",
    "has_ended",
    "hold_weakly",
    "in_one_piece",
    "in_pieces_like",
    "inlined_primitives",
    "instantiated_zero_tangent",
    "is_array_type",
    "is_in_pieces",
    "is_innermost",
    "is_number_type",
    "is_on_explicit_mesh",
    "is_unknown_tangent",
    "is_zero_tangent",
    "jaxprs_in",
    "jit_is_plain",
    "jit_options",
    "jit_p",
    "jit_params",
    "mapped_jaxpr",
    "mapped_outputs",
    "mapped_type",
    "mlir",
    "name_stack",
    "names_in",
    "names_of",
    "new_var",
    "no_effects",
    "not_a_literal",
    "numbers_along",
    "open_jaxpr",
    "open_name",
    "open_names",
    "open_names_of",
    "origin_of",
    "outputs_of_forward_rule",
    "register_kept_when_rematerialised",
    "remat_p",
    "repeated_like",
    "replace_jaxpr",
    "restore_thread_state",
    "result_of_extended_dtype",
    "same_names_after",
    "scan_p",
    "scan_params",
    "scan_sizes",
    "set_current_trace",
    "shard_map_p",
    "strongly_typed",
    "sub_jaxprs",
    "thread_state",
    "trace_level",
    "trace_to_closed_jaxpr",
    "trace_to_jaxpr",
    "type_of",
    "typeof",
    "varying_axes",
    "varying_axes_of_type",
    "varying_over",
    "while_p",
    "with_zero_cotangents",
    "without_forwarding",
    "zeros_of_type",
]

# Not from jax.extend.core, which has them too: importing it loads Pallas, 20 ms that most programs never need.
Literal = _core.Literal
Primitive = _core.Primitive
Var = _core.Var
Trace = _core.Trace
Tracer = _core.Tracer
Effect = _effects.Effect
ExtendedDType = _dtypes.ExtendedDType
SymbolicZero = _custom_derivatives.SymbolicZero
eval_trace = _core.eval_trace
no_effects = _core.no_effects
set_current_trace = _core.set_current_trace
typeof = _core.typeof
PjitFunction = type(jax.jit(lambda: None))


def inlined_primitives() -> set[Primitive]:
    """Primitives that stand for nothing but the one jaxpr among their parameters."""
    from jax._src.lax import eval_jaxpr  # a function in some versions, a module in others

    found = getattr(eval_jaxpr, "eval_jaxpr_p", None), getattr(_core, "eval_jaxpr_p", None)
    return {primitive for primitive in found if primitive is not None}


def current_trace() -> Trace:
    """The trace that a primitive bound now would go to."""
    return _core.trace_ctx.trace


# ---------------------------------------------------------------------------------------------------------------------
# Effects
# ---------------------------------------------------------------------------------------------------------------------


def allow_effect(effect_type: type[Effect]) -> None:
    """Lets an effect stand in every place where JAX otherwise refuses effects, and keeps it through dead-code passes.

    Without the last list, an equation whose result is unused disappears from `scan` under reverse mode.
    """
    for allowed in (
        _effects.lowerable_effects,
        _effects.control_flow_allowed_effects,
        _effects.remat_allowed_effects,
        _effects.custom_derivatives_allowed_effects,
        _effects.partial_eval_kept_effects,
    ):
        allowed.add_type(effect_type)


def hold_weakly(parameter_type: type) -> None:
    """Keeps JAX's cache of output types from holding on to parameters of this type, as it does for jaxprs.

    The cache has 2048 entries, and every function that is traced would leave some of its own there.
    """
    _util.weakref_cache_key_types.add(parameter_type)


def register_kept_when_rematerialised(primitive: Primitive, plain: Primitive, n_values: Callable[[Any], int]) -> None:
    """Under remat, `primitive` runs in the forward pass only; the recomputation gets `plain` in its place.

    An effectful equation would otherwise make its operands residuals, which defeats rematerialisation, and would run
    twice. Of the operands and outputs of an equation, the first `n_values(eqn)` are what `plain` passes on; other
    outputs are saved from the forward pass and become further operands of `plain`.
    """

    def rule(saveable: Any, unknown_in: Sequence[bool], instantiated_in: Sequence[bool], eqn: Any) -> Any:
        del saveable
        n, n_out = n_values(eqn), len(eqn.outvars)
        residuals = [x for x, i in zip(eqn.invars, instantiated_in) if type(x) is Var and not i]
        if any(unknown_in):
            return None, eqn, [True] * n_out, [True] * n_out, residuals
        saved = [v for v in eqn.outvars[n:] if type(v) is Var]
        values, outs = [*eqn.invars[:n], *eqn.outvars[n:]], eqn.outvars[:n]
        staged = eqn.replace(primitive=plain, effects=no_effects, invars=values, outvars=outs)
        return eqn, staged, [False] * n_out, [True] * n + [False] * (n_out - n), [*residuals, *saved]

    _pe.partial_eval_jaxpr_custom_rules[primitive] = rule


# ---------------------------------------------------------------------------------------------------------------------
# Jaxprs. 0.10 has open and closed ones, later versions have one class that carries its constants.
# ---------------------------------------------------------------------------------------------------------------------

_ONE_JAXPR_CLASS = getattr(_core, "ClosedJaxpr", _core.Jaxpr) is _core.Jaxpr


def open_jaxpr(jaxpr: Any) -> Any:
    """The part with the equations."""
    return jaxpr if _ONE_JAXPR_CLASS or isinstance(jaxpr, _core.Jaxpr) else jaxpr.jaxpr


def close_jaxpr(jaxpr: Any) -> Any:
    """A jaxpr together with its constants; an open one must have none."""
    return _core.ClosedJaxpr(jaxpr, ()) if not _ONE_JAXPR_CLASS and isinstance(jaxpr, _core.Jaxpr) else jaxpr


def first_outputs(jaxpr: Any, n: int) -> Any:
    """A closed jaxpr without the outputs after the first `n`."""
    inner = open_jaxpr(jaxpr)
    fewer = inner.replace(outvars=inner.outvars[:n])
    return fewer if inner is jaxpr else jaxpr.replace(jaxpr=fewer)


def sub_jaxprs(params: dict[str, Any]) -> list[Any]:
    """The jaxprs among the parameters of an equation, open or closed."""
    if "_prim" in params:  # an operation that says itself what it stands for, and has parameters of its own
        params = params["_prim"].params
    found = []
    for value in params.values():
        if type(value) in _NO_JAXPR:
            continue
        if isinstance(value, (tuple, list)):
            found += [x for x in value if type(x) not in _NO_JAXPR and hasattr(x, "eqns")]
        elif hasattr(value, "eqns"):
            found.append(value)
    return found


# What most parameters are: asking these for an attribute that they lack costs more than to look for their type.
_NO_JAXPR = {type(None), bool, int, float, str, np.dtype, type(np.dtype("float32")), type(np.dtype("int32"))}


def jaxprs_in(traced: Any) -> Iterator[Any]:
    """The jaxprs in what JAX returns when it has traced a function, or found the trace of it."""
    for part in traced if isinstance(traced, tuple) else (traced,):
        if hasattr(part, "eqns"):
            yield part
        elif isinstance(params := getattr(part, "params", None), dict):
            yield from sub_jaxprs(params)


def eval_jaxpr(jaxpr: Any, *args: Any) -> list[Any]:
    """Runs a jaxpr under the current trace."""
    closed = close_jaxpr(jaxpr)
    return _core.eval_jaxpr(open_jaxpr(closed), closed.consts, *args)


def trace_to_jaxpr(fn: Callable[..., list[Any]], avals: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Traces `fn`, which takes and returns flat values, to a jaxpr whose first inputs are the constants returned."""
    closed = jax.make_jaxpr(fn)(*avals)
    consts = list(closed.consts)
    if not consts:
        return closed, consts
    return close_jaxpr(_pe.convert_constvars_jaxpr(open_jaxpr(closed))), consts


def trace_to_closed_jaxpr(fn: Callable[..., list[Any]], avals: Sequence[Any]) -> Any:
    """Traces `fn`, which takes and returns flat values, to a jaxpr that holds its constants itself."""
    return jax.make_jaxpr(fn)(*avals)


def replace_jaxpr(
    jaxpr: Any, *, extra_invars: Sequence[Any], eqns: Sequence[Any], outvars: Sequence[Any], effects: Any
) -> Any:
    """A closed jaxpr with other equations and outputs, and new inputs in front."""
    old = open_jaxpr(jaxpr)
    new = old.replace(
        invars=[*extra_invars, *old.invars],
        eqns=list(eqns),
        outvars=list(outvars),
        effects=effects,
        debug_info=old.debug_info.with_unknown_names(),
    )
    if _ONE_JAXPR_CLASS:
        return new
    return _core.ClosedJaxpr(new, jaxpr.consts if open_jaxpr(jaxpr) is not jaxpr else ())


def new_var(aval: Any) -> Var:
    """A fresh variable."""
    return Var(aval)


def add_equation(var: Any, amount: int) -> tuple[Any, Any]:
    """The equation `out = var + amount` for an int32 scalar, and `out`."""
    jaxpr = open_jaxpr(jax.make_jaxpr(lambda x: x + amount)(var.aval))
    (template,) = jaxpr.eqns
    out = new_var(var.aval)
    invars = [x if isinstance(x, Literal) else var for x in template.invars]
    return template.replace(invars=invars, outvars=[out]), out


def added_amount(eqn: Any) -> int | None:
    """What an equation adds to its first operand, if it is a number that is written down in it."""
    if eqn.primitive is not lax.add_p or not isinstance(eqn.invars[1], Literal) or np.ndim(eqn.invars[1].val):
        return None
    return int(eqn.invars[1].val)


def name_stack() -> tuple[Any, ...]:
    """The names of the scopes that are open, as equations made now will remember them."""
    return names_in(open_names())


def open_names() -> Any:
    """The scopes that are open, for `names_in`."""
    return _source_info.current_name_stack()


def names_in(stack: Any) -> tuple[Any, ...]:
    """The names of the scopes that were open."""
    return tuple([element.name for element in stack.stack])


def count_names(stack: Any) -> int:
    """How many scopes were open."""
    return len(stack.stack)


def names_of(eqn: Any) -> tuple[Any, ...]:
    """The names of the scopes that were open when an equation was made, counted from its own jaxpr."""
    return tuple(element.name for element in eqn.source_info.name_stack.stack)


def open_name(name: str) -> Any:
    """A context manager that opens a scope with a name."""
    return _source_info.extend_name_stack(name)


def is_innermost(opened: Any) -> bool:
    """Whether the scope whose opening gave `opened` is the innermost that is open."""
    return _source_info.current_name_stack() is opened


def open_names_of(eqn: Any) -> Any:
    """A context manager that opens the scopes in which an equation was made."""
    return _source_info.set_name_stack(_source_info.current_name_stack() + eqn.source_info.name_stack)


def same_names_after() -> Any:
    """A context manager that restores the open scopes, whatever happens inside."""
    return _source_info.set_name_stack(_source_info.current_name_stack())


# ---------------------------------------------------------------------------------------------------------------------
# Parameters of higher-order primitives
# ---------------------------------------------------------------------------------------------------------------------


def jit_params(params: dict[str, Any], jaxpr: Any, *, n_in: int, n_out: int) -> dict[str, Any]:
    """Parameters of a jit with `n_in` more inputs in front and `n_out` more outputs at the end."""
    return {
        **params,
        "jaxpr": jaxpr,
        "in_shardings": (*[UNSPECIFIED] * n_in, *params["in_shardings"]),
        "out_shardings": (*params["out_shardings"], *[UNSPECIFIED] * n_out),
        "in_layouts": (*[None] * n_in, *params["in_layouts"]),
        "out_layouts": (*params["out_layouts"], *[None] * n_out),
        "donated_invars": (*[False] * n_in, *params["donated_invars"]),
    }


def jit_is_plain(params: dict[str, Any]) -> bool:
    """Whether a jit asks for nothing but compilation: no shardings, layouts or donation."""
    return (
        all(x is UNSPECIFIED for x in (*params["in_shardings"], *params["out_shardings"]))
        and all(x is None for x in (*params["in_layouts"], *params["out_layouts"]))
        and not any(params["donated_invars"])
        and not params.get("compiler_options_kvs")
    )


def scan_params(params: dict[str, Any], jaxpr: Any, *, n_consts: int, n_xs: int, n_ys: int) -> dict[str, Any]:
    """Parameters of a scan with more constants in front, more scanned inputs and more stacked outputs at the end."""
    new = {**params, "jaxpr": jaxpr}
    if "num_consts" in params:
        new["num_consts"] += n_consts
        return new
    assert _flattree is not None
    consts, carry, xs = params["ft_in"].unpack()
    carry_out, ys = params["ft_out"].unpack()
    if n_consts or n_xs:
        new["ft_in"] = _flattree.pack((_flattree.nones(len(consts) + n_consts), carry, (xs, _flattree.nones(n_xs))))
    if n_ys:
        new["ft_out"] = _flattree.pack((carry_out, (ys, _flattree.nones(n_ys))))
    return new


def scan_sizes(params: dict[str, Any]) -> tuple[int, int]:
    """How many inputs of a scan are constants, and how many are carried."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


def bind_custom_derivative(
    primitive: Primitive, args: Sequence[Any], functions: Sequence[tuple[Callable, Any]], **params
):
    """Binds a custom_jvp or custom_vjp call; `functions` pairs each new function with the wrapped one it stands for."""
    wrapped = tuple(_lu.wrap_init(new, debug_info=old.debug_info) for new, old in functions)
    return primitive.bind(*args, subfuns=wrapped, **params)


def call_again(wrapped: Any, *args: Any) -> Any:
    """Calls a `WrappedFun` that may have been called before (it stores side results once)."""
    for store in wrapped.stores:
        if store:
            store.reset()
    return wrapped.call_wrapped(*args)


def call_beside(wrapped: Any, *args: Any) -> Any:
    """Calls a `WrappedFun` for what happens inside it: what it has stored before, or has not, stays like that."""
    stores = [store for store in wrapped.stores if store is not None]
    before = [(store.val,) if store else () for store in stores]
    try:
        return call_again(wrapped, *args)
    finally:
        for store, values in zip(stores, before):
            store.reset()
            for value in values:
                store.store(value)


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
    """What JAX is told of a forward rule that returns all its residuals.

    Positions among the operands would be wrong where JAX evaluates a function partially: it puts operands in front.
    """

    def trees() -> Any:
        out_tree, residual_tree, forwarded = out_trees()
        return out_tree, residual_tree, [None] * len(forwarded)

    return trees


def with_zero_cotangents(result: Any, operands: Sequence[Any]) -> Any:
    """What a custom_vjp backward rule returned, with zeros at the end for more operands."""
    zeros = [ad.Zero(typeof(x).to_tangent_aval()) for x in operands]
    if not zeros:
        return result
    if _ONE_JAXPR_CLASS:  # the rule also returns what it logged
        cotangents, logged = result
        return [*cotangents, *zeros], logged
    return [*result, *zeros]


def bind_shard_map(primitive: Primitive, trace: Trace, fun: Callable, args: Sequence[Any], **params: Any) -> list[Any]:
    """Binds a shard_map of `fun` on `trace`."""
    params["subfuns"] = (fun,)
    avals = [typeof(x) for x in args]
    return primitive.bind_with_trace(trace, tuple(args), avals, params)


def flat_tree(values: Sequence[Any], aux: Any) -> Any:
    """The form in which the function inside a shard_map returns its outputs and their specs."""
    if _flattree is not None:
        return _flattree.flatten(list(values)).with_aux(aux)
    from jax._src.tree_util import FlatTree

    return FlatTree.flatten(list(values)).with_aux(aux)


def mapped_type(aval: Any, size: int, dim: int) -> Any:
    """The type of one element along an axis."""
    return _core.mapped_aval(size, dim, aval)


def mapped_outputs(
    jaxpr: Any, axis_data: Any, mapped: Sequence[bool], instantiate: Sequence[bool] | bool
) -> list[bool]:
    """Which outputs of a jaxpr are mapped if these inputs are, or are made to be."""
    instantiate = instantiate if isinstance(instantiate, bool) else list(instantiate)
    return list(_batching.batch_jaxpr(jaxpr, axis_data, list(mapped), instantiate)[1])


def mapped_jaxpr(jaxpr: Any, axis_data: Any, mapped: Sequence[bool]) -> Any:
    """A jaxpr with these inputs mapped along their first axis."""
    return _batching.batch_jaxpr(jaxpr, axis_data, list(mapped), False)[0]


def varying_axes(value: Any) -> frozenset[str]:
    """The mesh axes over which a value inside a shard_map varies."""
    return varying_axes_of_type(typeof(value))


def varying_over(value: Any, axes: frozenset[str]) -> Any:
    """A value that varies over these mesh axes, too."""
    missing = tuple(axes - varying_axes(value))
    return lax.pcast(value, missing, to="varying") if missing else value


def strongly_typed(value: Any) -> Any:
    """A value whose type does not give way to others, as what a loop carries must not."""
    aval = typeof(value)
    return lax.convert_element_type(value, aval.dtype) if getattr(aval, "weak_type", False) else value


def varying_axes_of_type(aval: Any) -> frozenset[str]:
    """The mesh axes over which values of a type vary."""
    return getattr(getattr(aval, "manual_axis_type", None), "varying", frozenset())


def zeros_of_type(aval: Any) -> Any:
    """Zeros of an abstract value: keys become key arrays of zeros, varying axes are kept."""
    if _dtypes.issubdtype(aval.dtype, _dtypes.extended):
        like = jax.ShapeDtypeStruct(aval.shape, aval.dtype)
        data = jax.eval_shape(jax.random.key_data, like)
        zeros = jax.random.wrap_key_data(jax.numpy.zeros(data.shape, data.dtype), impl=aval.dtype._impl)
    else:
        zeros = jax.numpy.zeros(aval.shape, aval.dtype, out_sharding=_explicit_sharding(aval))
    varying = varying_axes_of_type(aval)
    return lax.pcast(zeros, tuple(varying), to="varying") if varying else zeros


def _explicit_sharding(aval: Any) -> Any:
    """The sharding of a type on a mesh with explicit axes; None where JAX chooses shardings itself."""
    sharding = getattr(aval, "sharding", None)
    if sharding is None or sharding.mesh.empty or not sharding.mesh.are_all_axes_explicit:
        return None
    return sharding


def numbers_along(value: Any, axis: int) -> Any:
    """A zero for every element along an axis of a value, sharded as that axis is."""
    sharding = _explicit_sharding(typeof(value))
    if sharding is not None:
        sharding = jax.NamedSharding(sharding.mesh, jax.P(sharding.spec[axis]))
    return jax.numpy.zeros(value.shape[axis], "int32", out_sharding=sharding)


def is_on_explicit_mesh(value: Any) -> bool:
    """Whether the sharding of a value is part of its type."""
    return _explicit_sharding(typeof(value)) is not None


def is_in_pieces(aval: Any) -> bool:
    """Whether values of a type are laid out over a mesh with explicit axes."""
    sharding = _explicit_sharding(aval)
    return sharding is not None and any(names is not None for names in sharding.spec)


def in_one_piece(value: Any) -> Any:
    """A value that is not laid out over a mesh with explicit axes."""
    if not is_in_pieces(typeof(value)):
        return value
    return jax.sharding.reshard(value, jax.NamedSharding(typeof(value).sharding.mesh, jax.P()))


def in_pieces_like(value: Any, aval: Any, dim: int) -> Any:
    """A value whose elements along an axis are laid out as a type says."""
    if not is_in_pieces(aval):
        return value
    names = list(aval.sharding.spec)
    names.insert(dim, typeof(value).sharding.spec[dim])
    return jax.sharding.reshard(value, jax.NamedSharding(aval.sharding.mesh, jax.P(*names)))


def repeated_like(value: Any, other: Any) -> Any:
    """A value with one more axis in front, as long as the first of another value and sharded like that."""
    mine, spec = typeof(value), typeof(other).sharding.spec
    own = _explicit_sharding(mine)
    sharding = jax.NamedSharding(
        typeof(other).sharding.mesh, jax.P(spec[0], *(own.spec if own else [None] * mine.ndim))
    )
    shape = (other.shape[0], *mine.shape)
    return lax.broadcast_in_dim(value, shape, range(1, len(shape)), out_sharding=sharding)


def first_axis_like(value: Any, other: Any) -> Any:
    """A value whose first axis is sharded like that of another: `vmap` takes no others together."""
    mine, spec = typeof(value).sharding.spec, typeof(other).sharding.spec
    if mine[0] == spec[0]:
        return value
    return jax.sharding.reshard(value, jax.NamedSharding(typeof(other).sharding.mesh, jax.P(spec[0], *mine[1:])))


def is_zero_tangent(tangent: Any) -> bool:
    """Whether a tangent is symbolically zero or has no numbers in it."""
    return type(tangent) is ad.Zero or getattr(tangent, "dtype", None) == _dtypes.float0


# ---------------------------------------------------------------------------------------------------------------------
# Jitted callables
# ---------------------------------------------------------------------------------------------------------------------


def jit_options(fn: Any) -> tuple[Callable, dict[str, Any]] | None:
    """The function inside a jitted callable and the options to jit it again; None if that cannot be done faithfully."""
    if type(fn) is not PjitFunction:
        return None
    jitted: Any = fn
    info = jitted._jit_info
    shardings = (*info.in_shardings_leaves, *info.out_shardings_leaves)
    layouts = (*info.in_layouts_leaves, *info.out_layouts_leaves)
    if any(x is not UNSPECIFIED for x in shardings) or any(x is not None for x in layouts):
        return None
    if info.device or info.backend or getattr(info, "compiler_options_kvs", None):
        return None
    return jitted._fun, {
        "static_argnums": info.static_argnums or None,
        "static_argnames": info.static_argnames or None,
        "donate_argnums": info.donate_argnums or None,
        "donate_argnames": info.donate_argnames or None,
        "keep_unused": info.keep_unused,
        "inline": info.inline,
    }


# ---------------------------------------------------------------------------------------------------------------------
# Trace levels, for objects that must not be changed from another trace
# ---------------------------------------------------------------------------------------------------------------------


def trace_level() -> Any:
    """A token for the current trace, to be compared with `is`; it does not keep the trace alive.

    A trace that stands for its parent (a capture does) shares the parent's token, so that it is not a level of its own.
    """
    return _core.trace_ctx.trace._weakref


def thread_state() -> tuple[Any, Any]:
    """What a run changes in JAX's state of the thread: the current trace and the scopes that are open."""
    return _core.trace_ctx.trace, _source_info._source_info_context.context


def result_of_extended_dtype(aval: Any, sharding: Any, committed: Any) -> Any:
    """How a compiled program's result becomes an array of an extended dtype that is stored as another one."""
    from jax._src import earray
    from jax._src.interpreters import pxla

    stored = pxla.global_result_handlers[_core.ShapedArray](_core.physical_aval(aval), sharding, committed)
    return stored.wrap(lambda array: earray.EArray(aval, array))


def restore_thread_state(state: tuple[Any, Any]) -> None:
    """Sets the current trace and the open scopes to what they were."""
    trace, scopes = state
    if _core.trace_ctx.trace is not trace:
        _core.trace_ctx.set_trace(trace)
    _source_info._source_info_context.context = scopes


def ambient_mesh() -> Any | None:
    """The mesh of the surrounding `jax.set_mesh` (concrete if possible) or `with mesh:`, or None."""
    mesh = jax.sharding.get_mesh() if _core.trace_ctx.is_top_level() else None
    if mesh is None or mesh.empty:
        mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        from jax._src import mesh as _mesh

        mesh = _mesh.thread_resources.env.physical_mesh
    return None if mesh.empty else mesh


def type_of(value: Any) -> Any:
    """The type of an array, or of a variable in a jaxpr."""
    return value.aval if isinstance(value, (Var, Literal)) else typeof(value)


# ---------------------------------------------------------------------------------------------------------------------
# Tracers that were kept too long
# ---------------------------------------------------------------------------------------------------------------------


def has_ended(value: Any) -> bool:
    """Whether a value is a tracer of a trace that is over: one that is not among those around the current one.

    JAX marks most traces as over, but not those of jitted functions. Where it does not say what is around a trace, the
    answer is no.
    """
    if not isinstance(value, Tracer):
        return False
    if not value._trace.is_valid():
        return True
    around: Any = current_trace()
    while around is not None and around is not eval_trace:
        if around is value._trace or getattr(around, "tangent_trace", None) is value._trace:
            return False
        around = getattr(around, "parent_trace", None) or getattr(around, "parent", None)
    return around is eval_trace


# ---------------------------------------------------------------------------------------------------------------------
# Where tracers come from
# ---------------------------------------------------------------------------------------------------------------------


class Origin(NamedTuple):
    """The equation that a tracer is an output of."""

    primitive: Primitive
    params: dict[str, Any]
    position: int
    inputs: Sequence[Any]


def origin_of(tracer: Any) -> Any:
    """The equation that made a tracer, or the value that it stands for; None if neither is known."""
    if isinstance(tracer, _pe.DynamicJaxprTracer):
        value = _core.full_lower(tracer)
        if value is not tracer:
            return value
        eqn = tracer.parent
        if eqn is None or not any(v is tracer.val for v in eqn.outvars):
            return None
        position = [v is tracer.val for v in eqn.outvars].index(True)
        return Origin(eqn.primitive, eqn.params, position, eqn.in_tracers)
    if isinstance(tracer, _batching.BatchTracer):
        return tracer.val
    return getattr(tracer, "primal", None)


# ---------------------------------------------------------------------------------------------------------------------
# Tracers that are marked in place
# ---------------------------------------------------------------------------------------------------------------------


def copy_of_tracer(tracer: Tracer) -> Tracer:
    """Another tracer for the same value, for equations to hold on to."""
    copied = object.__new__(type(tracer))
    _take_over(copied, tracer)
    return copied


def become(tracer: Tracer, other: Any, copied: Tracer) -> bool:
    """Makes a tracer stand for the value of another one, for everything that holds it; False if it cannot.

    It can if both are of the same trace. Equations that JAX has made of the tracer before look up its variable only
    when the trace ends: they are given `copied`, a copy of the tracer as it was.
    """
    if type(other) is not type(tracer) or other._trace is not tracer._trace or hasattr(tracer, "recipe"):
        return False
    frame = getattr(tracer._trace, "frame", None)
    for entry in reversed(frame.tracing_eqns if frame is not None else ()):
        eqn: Any = entry() if isinstance(entry, weakref.ref) else entry
        if eqn is None:
            continue
        if eqn is getattr(tracer, "parent", None):  # nothing before it has the tracer
            break
        if any(x is tracer for x in eqn.in_tracers):
            eqn.in_tracers = [copied if x is tracer else x for x in eqn.in_tracers]
    _take_over(tracer, other)
    return True


def _take_over(tracer: Any, other: Any) -> None:
    for name in _slots(type(other)):
        if hasattr(other, name):
            object.__setattr__(tracer, name, getattr(other, name))
    if hasattr(other, "__dict__"):
        tracer.__dict__.update(other.__dict__)


@functools.lru_cache(maxsize=64)
def _slots(cls: type) -> list[str]:
    found = [name for kind in cls.__mro__ for name in getattr(kind, "__slots__", ())]
    return [name for name in found if name not in ("__weakref__", "__dict__")]


# ---------------------------------------------------------------------------------------------------------------------
# Which values are arrays
# ---------------------------------------------------------------------------------------------------------------------


def not_a_literal(value: Any) -> Any:
    """A value as an array: evaluating a jaxpr gives numbers that are written in it a type of their own."""
    dtype = getattr(value, "dtype", None) if isinstance(value, (int, float, complex)) else None
    return value if dtype is None else np.asarray(value, dtype)


def evaluates_early() -> bool:
    """Whether code runs under `jax.ensure_compile_time_eval`."""
    return _config.eager_constant_folding.value


def evaluated_late() -> Any:
    """A context manager that undoes `jax.ensure_compile_time_eval`."""
    return _config.eager_constant_folding(False)


def is_unknown_tangent(value: Any) -> bool:
    """Whether a value is a tangent in reverse mode, which a rule computes with and which never has numbers."""
    return isinstance(value, _pe.JaxprTracer) and not value.is_known()


def is_array_type(aval: Any) -> bool:
    """Whether a type is that of arrays of numbers or keys, and not of references or other objects."""
    return type(aval) is _core.ShapedArray


def is_number_type(dtype: Any) -> bool:
    """Whether JAX has arrays of a NumPy dtype (such as bfloat16)."""
    return _dtypes.issubdtype(dtype, np.number) or _dtypes.issubdtype(dtype, np.bool_)
