"""Runs a function with a handler at its sites, for `capture`, `edit` and all tools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sonde import _jax
from sonde.core.edits.plan import EditPlan, RunningPlan
from sonde.core.interpret.handler import Handler
from sonde.core.interpret.rules.jit import call_directly  # with all rules, which registers them
from sonde.core.interpret.rules.remat import recomputing
from sonde.core.interpret.trace import SiteTrace
from sonde.core.marks.primitive import kept
from sonde.core.marks.site_search import has_sites
from sonde.core.modules import trace_variants
from sonde.core.modules.call_stack import NOTHING, ModuleRequest, Wanted, begin_call_stack
from sonde.core.modules.copies import FollowedArrays
from sonde.core.session import opaque_calls
from sonde.core.session.inside_protocol import InsideRequest, change_libraries
from sonde.core.session.session import (
    SESSIONS,
    CaptureState,
    Session,
    capture_state,
    has_outlived_capture,
    operations_are_seen,
)

# Every change to JAX that is in place while a session runs, in any thread.
_changes = _jax.InPlace(
    *trace_variants.CHANGES,
    *opaque_calls.CHANGES,
    *kept.changes,
    *recomputing.changes,
    *_jax.meshes_can_be_set(SiteTrace).changes,
    *_jax.maps_told_apart(has_sites).changes,
    *_jax.examples_named(operations_are_seen).changes,
    *_jax.eager_shortcut(
        SiteTrace, has_sites, call_directly, lambda trace: trace.changed, SiteTrace.not_donated
    ).changes,
)
_jax.when_loaded("concurrent.futures.thread", lambda module: _changes.add(opaque_calls.submitting(module)))
_jax.at_first_capture(lambda: change_libraries(_changes))


def run_with(
    handler: Handler,
    f: Callable,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    *,
    grads: bool = False,
    edits: bool = False,
    plan: EditPlan | None = None,
    request: ModuleRequest | None = None,
    inside: InsideRequest | None = None,
    trace_type: Any = SiteTrace,
) -> Any:
    """The result of `f`, which runs with a handler at its sites. Then the handler holds what it has recorded.

    Args:
        handler: What is done at the sites; made for this run.
        f: The function.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        grads: Whether gradients must be marked.
        edits: Whether the handler replaces values.
        plan: The edits that `sow` applies on behalf of the handler.
        request: What is wanted of modules.
        inside: What to look into, as `inside_request` gives it.
        trace_type: Makes the trace that `f` runs under, of the trace around and the handler. One with `sees_all` is
            given every operation, and programs are traced apart from those of captures.
    """
    _jax.make_changes()
    # A thread goes on with the state of the capture whose program started it, also when that capture has ended.
    outer = None if has_outlived_capture() else capture_state()
    around = _NO_CAPTURE if outer is None else outer
    depth, plans = around.depth + 1, around.plans
    if plan is not None:
        plans = (*plans, RunningPlan(depth, plan, outer and outer.below(depth), _jax.count_open_names() > 0))
    requests = around.inside if inside is None else inside.nested_in(around.inside, depth)
    module_wants = NOTHING if request is None else request.traced
    if inside is not None:
        module_wants = module_wants._replace(methods=module_wants.methods | inside.methods)
    sows = request is None or request.sows or around.sows
    sees_all = getattr(trace_type, "sees_all", False) or _jax.all_is_seen()
    handler.begin(depth, outer)
    trace = trace_type(_jax.current_trace(), handler)
    models = () if inside is None else inside.known_models()
    try:
        with Session(handler) as session:
            try:
                session.change(_changes)
                # Most programs have no modules, and looking for them among the arguments takes time.
                if models or SESSIONS.look_for_modules:
                    copies = begin_call_stack(session, f, args, kwargs, request, models).copies
                    trace.changed = copies.followed if copies is not None and copies.followed.shapes else None
                    module_wants = _with_shapes(module_wants, trace.changed)
                state = CaptureState(
                    grads or around.grads,
                    edits or around.edits,
                    depth,
                    (*around.modules, module_wants),
                    requests,
                    sows,
                    plans,
                    sees_all,
                )
                session.begin(state, trace)
                try:
                    result = f(*args, **kwargs)
                except Exception as error:
                    if session.lost is not None and session.lost is not error:
                        raise session.lost from error
                    raise
            finally:
                session.end()
    finally:
        trace.invalidate()
    if session.lost is not None:  # a site in a thread: the records would lack it, though the program went well
        raise session.lost
    handler.finish()
    return result


_NO_CAPTURE = CaptureState(grads=False, depth=0, sows=False)


def _with_shapes(wanted: Wanted, changed: FollowedArrays | None) -> Wanted:
    """What a capture wants of modules, with the shapes of followed arrays, on which jitted functions depend."""
    return wanted if changed is None else wanted._replace(shapes=changed.shapes)
