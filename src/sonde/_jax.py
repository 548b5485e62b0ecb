"""The one door to JAX's inside.

Everything that `jax.extend`, `jax.interpreters` and `jax._src` promise nothing about is named here, once, together
with every difference between the JAX versions that Sonde supports (0.10 to 0.12). A change in JAX is a change in this
file alone. Nothing here knows what a site is.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax._src import ad_checkpoint as _ad_checkpoint
from jax._src import core as _core
from jax._src import custom_derivatives as _custom_derivatives
from jax._src import dtypes as _dtypes
from jax._src import effects as _effects
from jax._src import linear_util as _lu
from jax._src import pjit as _pjit
from jax._src import source_info_util as _source_info
from jax._src.ad_checkpoint import remat_p
from jax._src.custom_batching import custom_vmap_p
from jax._src.interpreters import ad as _ad
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
    "Literal",
    "Primitive",
    "SymbolicZero",
    "Trace",
    "Tracer",
    "Var",
    "ad",
    "batching",
    "cond_p",
    "custom_vmap_p",
    "eval_trace",
    "jit_p",
    "mlir",
    "no_effects",
    "remat_p",
    "scan_p",
    "set_current_trace",
    "shard_map_p",
    "typeof",
    "while_p",
]

# Not from jax.extend.core, which has them too: importing it loads Pallas, 20 ms that most programs never need.
Literal = _core.Literal
Primitive = _core.Primitive
Var = _core.Var
Trace = _core.Trace
Tracer = _core.Tracer
Effect = _effects.Effect
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

    Without the last list, an equation whose result nobody uses disappears from `scan` under reverse mode.
    """
    for allowed in (
        _effects.lowerable_effects,
        _effects.control_flow_allowed_effects,
        _effects.remat_allowed_effects,
        _effects.custom_derivatives_allowed_effects,
        _effects.partial_eval_kept_effects,
    ):
        allowed.add_type(effect_type)


def _forget_effect_handles() -> None:
    """Makes a finished partial-evaluation trace drop its effectful equations.

    JAX keeps them reachable from the trace, and `jax.checking_leaks()` then reports the trace as leaked (it does so
    for `jax.debug.callback` in the gradient of a scan too).
    """

    def invalidate(self: Any) -> None:
        Trace.invalidate(self)
        self.effect_handles = []

    _pe.JaxprTrace.invalidate = invalidate


_forget_effect_handles()


def keep_when_partially_evaluated(effect_type: type[Effect]) -> None:
    """Keeps every equation with an effect, whatever its primitive is, when JAX evaluates a program partially.

    JAX itself keeps those that it deals with in the default way, and scans. A call, a branch or a jitted function with
    such an equation inside would be lost if its outputs are not used: a site in a loop in a rematerialised loop body.
    """
    make = _pe.new_eqn_recipe

    def new_eqn_recipe(trace: Any, in_tracers: Any, out_tracers: Any, primitive: Any, params: Any, *rest: Any) -> Any:
        recipe = make(trace, in_tracers, out_tracers, primitive, params, *rest)
        if any(type(effect) is effect_type for effect in recipe.effects):
            trace.effect_handles.append(_pe.EffectHandle(list(in_tracers), recipe))
        return recipe

    _pe.new_eqn_recipe = new_eqn_recipe


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


def sub_jaxprs(params: dict[str, Any]) -> Iterator[Any]:
    """The jaxprs among the parameters of an equation, open or closed."""
    for value in params.values():
        if hasattr(value, "eqns"):
            yield value
        elif isinstance(value, (tuple, list)):
            for element in value:
                if hasattr(element, "eqns"):
                    yield element


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


def prepare_scans_for_differentiation(prepare: Callable[[dict[str, Any]], tuple[Any, dict[str, Any]] | None]) -> None:
    """Has `prepare` look at every scan before JAX splits it into a forward and a backward part.

    Where it returns something, the scan gets one more scanned input and other parameters; for all other scans JAX's own
    rules run as they are.
    """
    linearize = _ad.primitive_linearizations[scan_p]
    partial_eval = _pe.custom_partial_eval_rules[scan_p]
    partial_eval_in_remat: Any = _pe.partial_eval_jaxpr_custom_rules[scan_p]

    def new_linearize(is_vjp: Any, nonzeros: Any, *args: Any, **params: Any) -> Any:
        prepared = prepare(params)
        if prepared is None:
            return linearize(is_vjp, nonzeros, *args, **params)
        xs, params = prepared
        *others, linear = linearize(is_vjp, [*nonzeros, False], *args, xs, **params)
        no_tangent = ad.Zero(typeof(xs).to_tangent_aval())
        return *others, lambda *residuals_and_tangents: linear(*residuals_and_tangents, no_tangent)

    def new_partial_eval(trace: Any, *tracers: Any, **params: Any) -> Any:
        prepared = prepare(params)
        if prepared is not None:
            xs, params = prepared
            tracers = (*tracers, trace.to_jaxpr_tracer(xs))
        return partial_eval(trace, *tracers, **params)

    def new_partial_eval_in_remat(saveable: Any, unknown_in: Any, instantiated_in: Any, eqn: Any) -> Any:
        prepared = prepare(eqn.params)
        if prepared is not None:
            xs, params = prepared
            eqn = eqn.replace(invars=[*eqn.invars, Literal(xs, typeof(xs))], params=params)
            unknown_in, instantiated_in = [*unknown_in, False], [*instantiated_in, True]
        return partial_eval_in_remat(saveable, unknown_in, instantiated_in, eqn)

    _ad.primitive_linearizations[scan_p] = new_linearize
    _pe.custom_partial_eval_rules[scan_p] = new_partial_eval
    _pe.partial_eval_jaxpr_custom_rules[scan_p] = new_partial_eval_in_remat


def prepare_while_loops_for_remat(
    wants: Callable[[dict[str, Any]], bool],
    prepare: Callable[[dict[str, Any]], dict[str, Any] | None],
    recomputed: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any] | None],
) -> None:
    """Hooks into how while loops are computed again.

    `wants` says which loops it is about. `prepare` is shown the parameters of every such loop, and `recomputed` those
    of its forward part and of the loop that is computed again; where they return parameters, the loop gets those. JAX
    computes a loop again in a rematerialised function, and wherever it is differentiated: a loop that it cannot
    transpose must then be removed as not used, and an effect would be a use.
    """
    rule: Any = _pe.partial_eval_jaxpr_custom_rules[while_p]

    def new_rule(saveable: Any, unknown_in: Any, instantiated_in: Any, eqn: Any) -> Any:
        if not wants(eqn.params):
            return rule(saveable, unknown_in, instantiated_in, eqn)
        params = prepare(eqn.params)
        eqn = eqn if params is None else eqn.replace(params=params)
        known, staged, *rest = rule(saveable, unknown_in, instantiated_in, eqn)
        if known is not None and staged is not None:
            params = recomputed(known.params, staged.params)
            staged = staged if params is None else staged.replace(params=params, effects=no_effects)
        return known, staged, *rest

    _pe.partial_eval_jaxpr_custom_rules[while_p] = new_rule

    partial_eval = _pe.custom_partial_eval_rules[while_p]

    def new_partial_eval(trace: Any, *tracers: Any, **params: Any) -> Any:
        n_handles = len(trace.effect_handles)
        outs = partial_eval(trace, *tracers, **params)
        is_unknown = [isinstance(t, _pe.JaxprTracer) and not t.is_known() for t in outs]
        if not wants(params) or not any(is_unknown) or all(is_unknown):
            return outs
        # The known part has run; the equation for the rest computes it once more.
        unknown = [t for t, u in zip(outs, is_unknown) if u]
        recipe: Any = unknown[0].recipe
        consts = [not t.is_known() for t in tracers[: len(tracers) - len(outs)]]
        n, known = params["cond_nconsts"], {}
        for name, mine in (("cond_jaxpr", consts[:n]), ("body_jaxpr", consts[n:])):
            made = is_unknown if name == "body_jaxpr" else False
            known[name] = _pe.partial_eval_jaxpr_nounits(params[name], [*mine, *is_unknown], made)[0]
        again = recomputed(known, recipe.params)
        if again is not None:
            recipe = recipe._replace(params=again, effects=recipe.effects if wants(again) else no_effects)
            handles = trace.effect_handles[n_handles:] if wants(again) else []
            trace.effect_handles[n_handles:] = [_pe.EffectHandle(handle.parents, recipe) for handle in handles]
            for tracer in unknown:
                tracer.recipe = recipe
        return outs

    _pe.custom_partial_eval_rules[while_p] = new_partial_eval


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


def is_on_explicit_mesh(value: Any) -> bool:
    """Whether the sharding of a value is part of its type."""
    return _explicit_sharding(typeof(value)) is not None


def repeated_like(value: Any, other: Any) -> Any:
    """A value with one more axis in front, as long as the first of another value and sharded like that."""
    mine, spec = typeof(value), typeof(other).sharding.spec
    own = _explicit_sharding(mine)
    sharding = jax.NamedSharding(
        typeof(other).sharding.mesh, jax.P(spec[0], *(own.spec if own else [None] * mine.ndim))
    )
    shape = (other.shape[0], *mine.shape)
    return lax.broadcast_in_dim(value, shape, range(1, len(shape)), out_sharding=sharding)


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


class EagerShortcut:
    """While it is entered, jitted calls that do not need the current trace run on JAX's fast path instead.

    `jnp` functions are jitted; under a custom trace each of them would be bound as an equation and leave JAX's C++
    dispatch. This changes speed only: everything works without it, and it is in place only while somebody looks.
    One object serves all threads.
    """

    def __init__(self, trace_type: Any, needs_trace: Callable[[Any], bool]) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._plain = plain = getattr(_pjit, "_run_python_pjit", None)

        def run(p: Any, args_flat: Any, fun: Any, args: Any, kwargs: Any) -> Any:
            assert plain is not None
            trace: Any = _core.trace_ctx.trace
            if type(trace) is trace_type and trace.parent is eval_trace and not needs_trace(p.params["jaxpr"]):
                with set_current_trace(eval_trace):
                    return plain(p, args_flat, fun, args, kwargs)
            return plain(p, args_flat, fun, args, kwargs)

        self._run = run

    def __enter__(self) -> None:
        if self._plain is None:  # a JAX that is built otherwise: slower, not wrong
            return
        with self._lock:
            self._users += 1
            if self._users == 1:
                _pjit._run_python_pjit = self._run

    def __exit__(self, *_: object) -> None:
        if self._plain is None:
            return
        with self._lock:
            self._users -= 1
            if self._users == 0:
                _pjit._run_python_pjit = self._plain


class TracingHook:
    """While it is entered, the tracing of functions to jaxprs goes through functions of ours.

    JAX finds the trace of a function by the function, the types of its arguments and their structure. There are three
    places to look at, because jit and remat have caches in front of the one that all transforms share. One object
    serves all threads.

    Args:
        with_arguments: Called with the function, its positional and keyword arguments, and a function that goes on with
            another function in its place; where jit looks for a trace.
        with_tree: The same with a function that returns the structure of the arguments; where other transforms do.
    """

    def __init__(self, with_arguments: Callable[..., Any], with_tree: Callable[..., Any]) -> None:
        self._lock = threading.Lock()
        self._users = 0
        infer, remat, trace = _pjit._infer_params, _ad_checkpoint._trace_to_jaxpr, _pe.trace_to_jaxpr

        def infer_params(fun: Any, info: Any, args: Any, kwargs: Any) -> Any:
            return with_arguments(fun, args, kwargs, lambda new: infer(new, info, args, kwargs))

        def remat_to_jaxpr(fun: Any, in_tree: Any, *rest: Any) -> Any:
            return with_tree(fun, lambda: in_tree, lambda new: remat(new, in_tree, *rest))

        def trace_to_jaxpr(fun: Any, in_avals: Any, *rest: Any, **options: Any) -> Any:
            if options.get("fun_takes_flat_tree_arg"):  # JAX's own functions
                return trace(fun, in_avals, *rest, **options)
            return with_tree(fun, lambda: in_avals.tree, lambda new: trace(new, in_avals, *rest, **options))

        for name in ("cache_clear", "cache_info", "cache_keys", "evict_weakref"):
            if hasattr(trace, name):
                setattr(trace_to_jaxpr, name, getattr(trace, name))
        self._plain = infer, remat, trace
        self._hooked = infer_params, remat_to_jaxpr, trace_to_jaxpr

    def __enter__(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                _pjit._infer_params, _ad_checkpoint._trace_to_jaxpr, _pe.trace_to_jaxpr = self._hooked

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                _pjit._infer_params, _ad_checkpoint._trace_to_jaxpr, _pe.trace_to_jaxpr = self._plain


# ---------------------------------------------------------------------------------------------------------------------
# Trace levels, for objects that must not be changed from another trace
# ---------------------------------------------------------------------------------------------------------------------


def trace_level() -> Any:
    """A token for the current trace, to be compared with `is`; it does not keep the trace alive.

    A trace that stands for its parent (a capture does) shares the parent's token, so that it is no level of its own.
    """
    return _core.trace_ctx.trace._weakref


def thread_state() -> tuple[Any, Any]:
    """What a run changes in JAX's state of the thread: the current trace and the scopes that are open."""
    return _core.trace_ctx.trace, _source_info._source_info_context.context


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
    for kind in type(other).__mro__:
        for name in getattr(kind, "__slots__", ()):
            if name not in ("__weakref__", "__dict__") and hasattr(other, name):
                object.__setattr__(tracer, name, getattr(other, name))
    if hasattr(other, "__dict__"):
        tracer.__dict__.update(other.__dict__)


# ---------------------------------------------------------------------------------------------------------------------
# Which values are arrays
# ---------------------------------------------------------------------------------------------------------------------


def not_a_literal(value: Any) -> Any:
    """A value as an array: evaluating a jaxpr gives numbers that are written in it a type of their own."""
    return (
        np.asarray(value, value.dtype)
        if isinstance(value, (int, float, complex)) and hasattr(value, "dtype")
        else value
    )


def is_array_type(aval: Any) -> bool:
    """Whether a type is that of arrays of numbers or keys, and not of references or other objects."""
    return type(aval) is _core.ShapedArray


def is_number_type(dtype: Any) -> bool:
    """Whether JAX has arrays of a NumPy dtype (such as bfloat16)."""
    return _dtypes.issubdtype(dtype, np.number) or _dtypes.issubdtype(dtype, np.bool_)
