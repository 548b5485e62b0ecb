"""Every change that Sonde makes to JAX, with its reason.

A change that stays is a rule in one of JAX's tables, made at the first capture and not when Sonde is imported
(`at_first_capture`). It looks at what it is given and leaves everything without sites to JAX's own rule. A function of
JAX is replaced only while a capture runs (`InPlace`). `tests/test_plain_jax.py` compares JAX with Sonde to JAX without.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import core as _public_core
from jax._src import ad_checkpoint as _ad_checkpoint
from jax._src import api_util as _api_util
from jax._src import callback as _callback
from jax._src import core as _core
from jax._src import custom_derivatives as _custom_derivatives
from jax._src import debugging as _debugging
from jax._src import pjit as _pjit
from jax._src import sharding_impls as _sharding_impls
from jax._src import traceback_util as _traceback
from jax._src.interpreters import ad as _ad
from jax._src.interpreters import batching as _batching
from jax._src.interpreters import partial_eval as _pe
from jax.export import Exported
from jax.interpreters import partial_eval as _public_pe

from sonde._jax.arguments import arrays_described, described, traced_arguments
from sonde._jax.imported import (
    AxisData,
    Effect,
    Equation,
    Jaxpr,
    Literal,
    Primitive,
    ad,
    cond_p,
    eval_trace,
    no_effects,
    scan_p,
    set_current_trace,
    typeof,
    while_p,
)
from sonde._jax.in_place import Change, InPlace, InterruptibleLock
from sonde._jax.jaxprs import first_outputs, open_jaxpr, sub_jaxprs
from sonde._jax.scope_names import open_name
from sonde._jax.traces import all_is_seen
from sonde._jax.vmaps import RUNNING, CallOfMap, ExampleName, NumberedAxis, mapped_next

__all__ = [
    "at_first_capture",
    "eager_shortcut",
    "examples_named",
    "hide_frames",
    "kept_when_partially_evaluated",
    "made_jaxprs",
    "make_changes",
    "maps_told_apart",
    "meshes_can_be_set",
    "opaque_calls",
    "prepare_scans_for_differentiation",
    "prepare_while_loops_for_remat",
    "recomputations_checked",
    "tracing_hook",
    "trials_unseen",
    "when_loaded",
]


class _DueChanges:
    """Changes that stay, and that are made when a capture begins.

    Attributes:
        at_first: Those that the first capture makes.
        when_loaded: Those to modules that few programs use, by the name of the module.
    """

    def __init__(self) -> None:
        self.at_first: list[Callable[[], None]] = []
        self.when_loaded: dict[str, Callable[[Any], None]] = {}
        self._lock = InterruptibleLock()

    def make(self) -> None:
        if self.at_first:
            self._lock.run(self._make_first)
        for module in [name for name in self.when_loaded if name in sys.modules]:
            self._lock.run(functools.partial(self._change_loaded, module))

    def _make_first(self) -> None:
        while self.at_first:
            self.at_first[0]()
            del self.at_first[0]

    def _change_loaded(self, module: str) -> None:
        if change := self.when_loaded.pop(module, None):
            change(sys.modules[module])


_DUE = _DueChanges()


def at_first_capture(change: Callable[[], None]) -> None:
    """Makes a change to JAX when the first capture, edit or the like begins."""
    _DUE.at_first.append(change)


def when_loaded(module: str, change: Callable[[Any], None]) -> None:
    """Makes a change to a module that few programs use, when a capture begins after that module was imported."""
    _DUE.when_loaded[module] = change


def make_changes() -> None:
    """Makes the changes that are due."""
    _DUE.make()


@functools.cache
def hide_frames(*parts: str) -> None:
    """Leaves frames of parts of Sonde out of tracebacks, as JAX does with its own."""
    for part in parts:
        _traceback.register_exclusion(os.path.join(os.path.dirname(os.path.dirname(__file__)), part))


at_first_capture(lambda: hide_frames("_jax", "core", "inside"))


def prepare_scans_for_differentiation(prepare: Callable[[dict[str, Any]], tuple[Any, dict[str, Any]] | None]) -> None:
    """Calls `prepare` on every scan before JAX splits it into a forward and a backward part.

    If it returns something, the scan gets one more scanned input and new parameters; all other scans use JAX's own
    rules.
    """
    linearize = _ad.primitive_linearizations[scan_p]
    partial_eval = _pe.custom_partial_eval_rules[scan_p]
    partial_eval_in_remat: Any = _pe.partial_eval_jaxpr_custom_rules[scan_p]

    def new_linearize(is_vjp: Any, nonzeros: Any, *args: Any, **params: Any) -> Any:
        prepared = prepare(params)
        if prepared is None:
            return linearize(is_vjp, nonzeros, *args, **params)
        # The new scanned input comes last, and has no tangent.
        xs, params = prepared
        *outs_and_residuals, linear = linearize(is_vjp, [*nonzeros, False], *args, xs, **params)
        no_tangent = ad.Zero(typeof(xs).to_tangent_aval())
        return *outs_and_residuals, lambda *residuals_and_tangents: linear(*residuals_and_tangents, no_tangent)

    def new_partial_eval(trace: Any, *tracers: Any, **params: Any) -> Any:
        prepared = prepare(params)
        if prepared is not None:
            xs, params = prepared
            tracers = (*tracers, trace.to_jaxpr_tracer(xs))
        return partial_eval(trace, *tracers, **params)

    def new_partial_eval_in_remat(saveable: Any, unknown_in: Any, instantiated_in: Any, eqn: Equation) -> Any:
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
    """Hooks into the recomputation of while loops.

    `wants` selects the loops. `prepare` gets the parameters of each selected loop; `recomputed` gets those of its
    forward part and of its recomputation. Parameters that they return replace the loop's own. JAX recomputes a loop in
    a rematerialized function, and wherever the loop is differentiated. A recomputed loop that JAX cannot transpose must
    be removed as unused, but an effect would count as a use.
    """
    rule: Any = _pe.partial_eval_jaxpr_custom_rules[while_p]

    def new_rule(saveable: Any, unknown_in: Any, instantiated_in: Any, eqn: Equation) -> Any:
        if not wants(eqn.params):
            return rule(saveable, unknown_in, instantiated_in, eqn)
        params = prepare(eqn.params)
        eqn = eqn if params is None else eqn.replace(params=params)
        known_eqn, staged_eqn, *flags_and_residuals = rule(saveable, unknown_in, instantiated_in, eqn)
        if known_eqn is not None and staged_eqn is not None:
            params = recomputed(known_eqn.params, staged_eqn.params)
            staged_eqn = staged_eqn if params is None else staged_eqn.replace(params=params, effects=no_effects)
        return known_eqn, staged_eqn, *flags_and_residuals

    _pe.partial_eval_jaxpr_custom_rules[while_p] = new_rule

    partial_eval = _pe.custom_partial_eval_rules[while_p]

    def new_partial_eval(trace: Any, *tracers: Any, **params: Any) -> Any:
        is_unknown = [not t.is_known() for t in tracers]
        known_part = (
            _known_part(params, is_unknown) if wants(params) and any(is_unknown) and not all(is_unknown) else None
        )
        if known_part is None:
            return partial_eval(trace, *tracers, **params)
        forward, outs_unknown = known_part
        # A carry that is known at first may later depend on one that is not.
        inputs_unknown = [*is_unknown[: len(tracers) - len(outs_unknown)], *outs_unknown]
        known_outs = iter(
            while_p.bind(*[t.pval.get_known() for t, u in zip(tracers, inputs_unknown) if not u], **forward)
        )
        # The known part has run. The equation for the rest, which may exist only for its sites, computes it once more.
        n_handles = len(trace.effect_handles)
        outs = trace.default_process_primitive(while_p, tracers, params)
        again = recomputed(forward, params)
        if again is not None:
            recipe: Any = outs[0].recipe
            recipe = recipe._replace(params=again, effects=recipe.effects if wants(again) else no_effects)
            handles = trace.effect_handles[n_handles:] if wants(again) else []
            trace.effect_handles[n_handles:] = [_pe.EffectHandle(handle.parents, recipe) for handle in handles]
            for tracer in outs:
                tracer.recipe = recipe
        return [out if u else next(known_outs) for out, u in zip(outs, outs_unknown)]

    _pe.custom_partial_eval_rules[while_p] = new_partial_eval


def _known_part(params: dict[str, Any], is_unknown: list[bool]) -> tuple[dict[str, Any], list[bool]] | None:
    """The part of the loop that depends on known inputs alone, and which outputs are unknown.

    None if the length of the loop is unknown too. If a site in the test is kept for its effect, JAX's own rule leaves
    the test with extra outputs for the rest of the loop; here they are dropped.
    """
    n_test, n_body = params["cond_nconsts"], params["body_nconsts"]
    test, body, carry = is_unknown[:n_test], is_unknown[n_test : n_test + n_body], is_unknown[n_test + n_body :]
    # What is carried is unknown if it becomes so in any iteration: repeated until the carry no longer changes.
    while True:
        known_body, _, outs, _ = _pe.partial_eval_jaxpr_nounits(params["body_jaxpr"], [*body, *carry], carry)
        if outs == carry:
            break
        carry = [a or b for a, b in zip(carry, outs)]
    known_test, _, (length_unknown,), _ = _pe.partial_eval_jaxpr_nounits(params["cond_jaxpr"], [*test, *carry], False)
    if length_unknown:
        return None
    forward = {
        "cond_nconsts": test.count(False),
        "cond_jaxpr": first_outputs(known_test, 1),
        "body_nconsts": body.count(False),
        "body_jaxpr": first_outputs(known_body, carry.count(False)),
    }
    return forward, carry


# ---------------------------------------------------------------------------------------------------------------------
# Changes that are in place only while a capture runs
# ---------------------------------------------------------------------------------------------------------------------


def eager_shortcut(
    trace_type: Any,
    needs_trace: Callable[[Any], bool],
    call: Callable[[Any, Any, Any], Any],
    changes: Callable[[Any], Any],
    not_donated: Callable[[Any, Any, Any], Any],
) -> InPlace:
    """Runs jitted calls that do not need the current trace on JAX's fast path; the others need not be bound.

    `jnp` functions are jitted; under a custom trace each of them would be bound as an equation and leave JAX's C++
    dispatch. This changes speed only: everything works without it.

    Args:
        trace_type: The type of the trace.
        needs_trace: Whether a jaxpr needs it.
        call: Called with a trace, the arguments and the parameters of a jitted call that needs it; returns the outputs,
            or None if the call must be bound as an equation.
        changes: Returns what is noted about arrays under a trace; see `FollowedArrays` in `core/modules/copies.py`.
        not_donated: Called with a trace, the arguments of a jitted call, and which of them are donated; returns the
            arguments to use.
    """
    plain: Any = getattr(_pjit, "_run_python_pjit", None)
    if plain is None:  # a JAX without this function: slower, not wrong
        return InPlace()

    def run(p: Any, args_flat: Any, fun: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        trace: Any = _core.trace_ctx.trace
        if type(trace) is not trace_type or trace.parent is not eval_trace:
            result = plain(p, args_flat, fun, args, kwargs)
            # Without a compiled program, the next call comes here too.
            return (*result[:5], None, *result[6:]) if all_is_seen() else result
        jaxpr = p.params["jaxpr"]
        if not needs_trace(jaxpr):
            donated = p.params["donated_invars"]
            with set_current_trace(eval_trace):
                if True in donated:
                    args_flat = not_donated(trace, args_flat, donated)
                result = plain(p, args_flat, fun, args, kwargs)
            noting = changes(trace)
            if True in donated:
                result = (*result[:5], None, *result[6:])
            if noting is not None and noting.can_be_change(p.params):
                noting.note(_pjit.jit_p, p.params, args_flat, result[1])
                return (*result[:5], None, *result[6:])  # no compiled program: the next call comes here too
            return result
        outs = None if open_jaxpr(jaxpr).is_high else call(trace, args_flat, p.params)
        if outs is None:
            return plain(p, args_flat, fun, args, kwargs)
        return p.out_tree.unflatten(outs), outs, p.out_tree, args_flat, jaxpr, None, None, []

    return InPlace(Change(_pjit, "_run_python_pjit", run))


def examples_named(wanted: Callable[[], bool]) -> InPlace:
    """Gives equations that `vmap` makes a name that says where the mapped axis is, if `wanted()`.

    Otherwise nothing tells it from the other axes of an array.
    """
    plain = _batching.BatchTrace.process_primitive

    def process_primitive(self: Any, primitive: Primitive, tracers: Sequence[Any], params: dict[str, Any], /) -> Any:
        if not wanted() or sub_jaxprs(params):  # the equations inside are mapped one by one
            return plain(self, primitive, tracers, params)
        name = ExampleName("example")
        name.size = self.axis_data.size
        with open_name(name):
            outs = plain(self, primitive, tracers, params)
        results = outs if primitive.multiple_results else [outs]
        name.inputs, name.outputs = tuple(map(_mapped_axis, tracers)), tuple(map(_mapped_axis, results))
        return outs

    return InPlace(Change(_batching.BatchTrace, "process_primitive", process_primitive))


def _mapped_axis(value: Any) -> int | None:
    dim = getattr(value, "batch_dim", None)
    return dim if isinstance(dim, int) else None


def meshes_can_be_set(trace_type: Any) -> InPlace:
    """`jax.set_mesh` works in a captured function that runs outside other transforms.

    JAX refuses it under every trace but its own. A capture's trace does not change values, so it is safe there.
    """
    set_mesh: Any = _sharding_impls.set_mesh
    plain = set_mesh.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        trace: Any = _core.trace_ctx.trace
        while type(trace) is trace_type or getattr(trace, "sees_all", False):
            trace = trace.parent
        with set_current_trace(trace):
            plain(self, *args, **kwargs)

    return InPlace(Change(set_mesh, "__init__", init))


def trials_unseen(traced_for: str, unseen: Callable[[], contextlib.AbstractContextManager[None]]) -> InPlace:
    """Runs the traces that a library makes for some purpose inside `unseen()`, where nothing is marked.

    Only the public name of JAX's function is replaced, which libraries use, and JAX does not.
    """
    plain = getattr(_public_pe, "trace_to_jaxpr_dynamic", None)
    if plain is None:
        return InPlace()

    def trace_to_jaxpr_dynamic(fun: Any, *args: Any, **options: Any) -> Any:
        if getattr(getattr(fun, "debug_info", None), "traced_for", None) != traced_for:
            return plain(fun, *args, **options)
        with unseen():
            return plain(fun, *args, **options)

    return InPlace(Change(_public_pe, "trace_to_jaxpr_dynamic", trace_to_jaxpr_dynamic))


def made_jaxprs(
    shown: Callable[[Any], Any],
    to_evaluate: Callable[[Any, Any], tuple[Any, Any]],
    to_bind: Callable[[dict[str, Any]], dict[str, Any]],
) -> InPlace:
    """Lets `jax.make_jaxpr` return another program than the one that JAX evaluates in its place.

    Of `make_jaxpr` only the public name is replaced: JAX and Sonde use the function itself.

    Args:
        shown: Takes a new closed jaxpr; returns what the caller gets.
        to_evaluate: Takes a jaxpr and its constants that are to be evaluated; returns others, or these.
        to_bind: Takes the parameters of a jitted function, loop or branch; returns others, or these.
    """
    make, evaluate = jax.make_jaxpr, _core.eval_jaxpr

    def make_jaxpr(fun: Any, *args: Any, **options: Any) -> Any:
        made = make(fun, *args, **options)

        @functools.wraps(made)
        def make_jaxpr_f(*args: Any, **kwargs: Any) -> Any:
            jaxpr_and_shape = made(*args, **kwargs)
            return (
                (shown(jaxpr_and_shape[0]), *jaxpr_and_shape[1:])
                if isinstance(jaxpr_and_shape, tuple)
                else shown(jaxpr_and_shape)
            )

        return make_jaxpr_f

    def eval_jaxpr(jaxpr: Jaxpr, consts: Any, *args: Any, **options: Any) -> Any:
        return evaluate(*to_evaluate(jaxpr, consts), *args, **options)

    # A program that was made may come back as that of a call or a loop, which JAX binds without evaluating it.
    def binding(primitive: Primitive) -> Change:
        bind = primitive.bind
        return Change(primitive, "bind", lambda *args, **params: bind(*args, **to_bind(params)))

    return InPlace(
        Change(jax, "make_jaxpr", functools.wraps(make)(make_jaxpr)),
        Change(_core, "eval_jaxpr", eval_jaxpr),
        Change(_public_core, "eval_jaxpr", eval_jaxpr),
        *map(binding, (_pjit.jit_p, scan_p, while_p, cond_p)),
    )


def tracing_hook(
    is_free: Callable[..., bool],
    with_arguments: Callable[..., Any],
    with_description: Callable[..., Any],
    notes: Callable[..., Any],
) -> InPlace:
    """Routes the tracing of functions to jaxprs through Sonde's functions.

    JAX finds the trace of a function by the function, the types of its arguments and their structure. Three functions
    are replaced, because jit and remat have caches in front of the one that all transforms share. The function that
    describes calls is replaced too, so that descriptions hold the arguments: see `arguments.py`.

    Args:
        is_free: Called where jit looks for a trace, with the function and its positional and keyword arguments: says
            whether jit may go on without `with_arguments`.
        with_arguments: Called where jit looks for a trace, with the function, its positional and keyword arguments, a
            function that returns the arrays among them that the program gets, and a function that goes on with another
            function in its place.
        with_description: Called where other transforms look for a trace, with the function, the description of the
            call, a function that returns the arrays, and one that goes on.
        notes: Called with the arguments of a call; what it returns is kept with its description. If it is None, JAX's
            own description is left as it is.
    """
    infer, remat, trace = _pjit._infer_params, _ad_checkpoint._trace_to_jaxpr, _pe.trace_to_jaxpr
    describe = _api_util.debug_info

    def infer_params(fun: Any, info: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if is_free(fun, args, kwargs):
            return infer(fun, info, args, kwargs)
        return with_arguments(
            fun,
            args,
            kwargs,
            lambda: traced_arguments(args, kwargs, info.static_argnums, info.static_argnames),
            lambda new: infer(new, info, args, kwargs),
        )

    def remat_to_jaxpr(fun: Any, in_tree: Any, in_avals: Any, info: Any, *rest: Any) -> Any:
        return with_description(
            fun,
            info,
            lambda: arrays_described(info, in_avals),
            lambda new: remat(new, in_tree, in_avals, info, *rest),
        )

    def trace_to_jaxpr(fun: Any, in_avals: Any, *rest: Any, **options: Any) -> Any:
        if options.get("fun_takes_flat_tree_arg"):  # JAX's own functions
            return trace(fun, in_avals, *rest, **options)
        info = rest[0] if rest else options.get("debug_info")
        return with_description(
            fun,
            info,
            lambda: arrays_described(info, list(in_avals)),
            lambda new: trace(new, in_avals, *rest, **options),
        )

    def debug_info(traced_for: Any, fun: Any, args: Sequence[Any], kwargs: dict[str, Any], **options: Any) -> Any:
        info, noted = describe(traced_for, fun, args, kwargs, **options), notes(args, kwargs)
        if noted is None:
            return info
        static = options.get("static_argnums", ()), options.get("static_argnames", ())
        return described(info, args, kwargs, static, noted)

    for name in ("cache_clear", "cache_info", "cache_keys", "evict_weakref"):
        if hasattr(trace, name):
            setattr(trace_to_jaxpr, name, getattr(trace, name))
    describing = [m for m in (_api_util, _pjit, _custom_derivatives) if getattr(m, "debug_info", None) is describe]
    return InPlace(
        Change(_pjit, "_infer_params", infer_params),
        Change(_ad_checkpoint, "_trace_to_jaxpr", remat_to_jaxpr),
        Change(_pe, "trace_to_jaxpr", trace_to_jaxpr),
        *[Change(module, "debug_info", debug_info) for module in describing],
    )


def kept_when_partially_evaluated(effect_type: type[Effect]) -> InPlace:
    """Every equation with an effect is kept, whatever its primitive is, when JAX evaluates a program partially.

    JAX itself keeps those that it handles in the default way, and scans. A call, a branch or a jitted function with
    such an equation inside would be lost if its outputs are not used, and with it, for example, a site in a loop in a
    rematerialized loop body.
    """
    make = _pe.new_eqn_recipe

    def is_ours(recipe: Any) -> bool:
        return any(type(effect) is effect_type for effect in recipe.effects)

    def new_eqn_recipe(
        trace: Any, in_tracers: Any, out_tracers: Any, primitive: Primitive, params: dict[str, Any], *rest: Any
    ) -> Any:
        recipe = make(trace, in_tracers, out_tracers, primitive, params, *rest)
        if is_ours(recipe):
            trace.effect_handles.append(_pe.EffectHandle(list(in_tracers), recipe))
        return recipe

    def invalidate(self: Any) -> None:
        # What is kept refers to its trace, which `jax.checking_leaks()` would report as leaked, as it does for
        # JAX's own callbacks in the gradient of a scan.
        plain(self)
        self.effect_handles = [handle for handle in self.effect_handles if not is_ours(handle.recipe)]

    plain = _pe.JaxprTrace.invalidate
    return InPlace(
        Change(_pe, "new_eqn_recipe", new_eqn_recipe),
        Change(_pe.JaxprTrace, "invalidate", invalidate),
    )


def opaque_calls(changed: Callable[[Any], Any], before_compiled: Callable[[], None]) -> InPlace:
    """Intercepts calls that a trace cannot see into: host functions, and functions that were compiled ahead of time.

    Args:
        changed: Takes a host function; returns the function that the program calls instead.
        before_compiled: Called before each call of a function that was compiled ahead of time, or exported.
    """

    def staged(primitive: Primitive) -> Any:
        def rule(trace: Any, source_info: Any, *tracers: Any, callback: Any, **params: Any) -> Any:
            params["callback"] = changed(callback)
            return trace.default_process_primitive(primitive, tracers, params, source_info)

        return rule

    def announced(plain: Any) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            before_compiled()
            return plain(self, *args, **kwargs)

        return call

    primitives = (_callback.pure_callback_p, _callback.io_callback_p, _debugging.debug_callback_p)
    return InPlace(
        *[Change(_pe.custom_staging_rules, primitive, staged(primitive)) for primitive in primitives],
        Change(jax.stages.Compiled, "__call__", announced(jax.stages.Compiled.__call__)),
        Change(Exported, "call", announced(Exported.call)),
    )


def recomputations_checked(check: Callable[[Any], None]) -> InPlace:
    """Calls `check` with every program that recomputes a function under `jax.checkpoint`, with `jax_remat3`."""
    plain = getattr(_ad_checkpoint, "remat_transform", None)
    if plain is None:
        return InPlace()

    @functools.wraps(plain)
    def remat_transform(*args: Any, **options: Any) -> Any:
        outs, again = plain(*args, **options)
        run = again.func  # 0.10 has a function that closes over the program, later versions a partial function
        held = run.args if hasattr(run, "args") else [cell.cell_contents for cell in run.__closure__]
        for jaxpr in held:
            if hasattr(jaxpr, "eqns"):
                check(jaxpr)
        return outs, again

    return InPlace(Change(_ad_checkpoint, "remat_transform", remat_transform))


def maps_told_apart(matters: Callable[[Any], bool]) -> InPlace:
    """Tells batching rules which `vmap` an axis is from.

    JAX tells them only its size and name, and caches the batched form of a jaxpr by these: if two axes have the same
    size, values recorded inside would seem to have the axis that came first. `matters` says for which
    jaxprs this is needed; all others are batched as usual.
    """
    batch = _batching.batch
    names = [field.name for field in dataclasses.fields(_batching.AxisData)]

    # An axis that has its number already comes from a rule that maps a function inside.
    def new_batch(fun: Any, axis_data: AxisData, *rest: Any, **options: Any) -> Any:
        if type(axis_data) is _batching.AxisData:
            fields = [getattr(axis_data, name) for name in names]
            mapped = mapped_next()
            batched = batch(fun, NumberedAxis(*fields, mapped_by=mapped, plain=axis_data), *rest, **options)
            return CallOfMap(batched, len(mapped.path) - 1) if mapped.program is RUNNING else batched
        return batch(fun, axis_data, *rest, **options)

    def numbered_as_needed(plain: Any) -> Any:
        def batch_program(jaxpr: Any, axis_data: AxisData, *rest: Any) -> Any:
            if type(axis_data) is NumberedAxis and not matters(jaxpr):
                axis_data = axis_data.plain
            return plain(jaxpr, axis_data, *rest)

        return batch_program

    return InPlace(
        Change(_batching, "batch", new_batch),
        Change(_batching, "batch_jaxpr2", numbered_as_needed(_batching.batch_jaxpr2)),
        Change(_batching, "batch_jaxpr_axes", numbered_as_needed(_batching.batch_jaxpr_axes)),
    )
