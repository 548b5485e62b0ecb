"""The current trace of a thread, and the rest of JAX's state that a run changes."""

from __future__ import annotations

import weakref
from typing import Any

from jax._src import config as _config
from jax._src import core as _core
from jax._src import source_info_util as _source_info

from sonde._jax.imported import Trace
from sonde._jax.jaxprs import open_jaxpr, sub_jaxprs

__all__ = [
    "all_is_seen",
    "count_traced_equations",
    "current_trace",
    "evaluated_late",
    "evaluates_early",
    "is_no_jax_array",
    "is_outermost",
    "restore_thread_state",
    "start_trace",
    "thread_state",
    "trace_level",
]


def current_trace() -> Trace:
    """The trace that a primitive bound now would go to."""
    return _core.trace_ctx.trace


def count_traced_equations() -> int:
    """How many equations the program that is traced now has so far, with those of loops, branches and calls in it."""
    frame: Any = getattr(_core.trace_ctx.trace, "frame", None)
    counts: dict[int, int] = {}
    made = (ref() if isinstance(ref, weakref.ref) else ref for ref in getattr(frame, "tracing_eqns", ()))
    return sum(1 + _count_inside(eqn.params, counts) for eqn in made if eqn is not None)


def _count_inside(params: dict[str, Any], known: dict[int, int]) -> int:
    total = 0
    for jaxpr in sub_jaxprs(params):
        key = id(open_jaxpr(jaxpr))
        if key not in known:
            known[key] = sum(1 + _count_inside(eqn.params, known) for eqn in open_jaxpr(jaxpr).eqns)
        total += known[key]
    return total


def all_is_seen() -> bool:
    """Whether the current trace, or one around it, must see every operation: none may go to JAX's fast path.

    Such a trace has a true attribute `sees_all`. JAX's fast path does not know it, since it shares its parent's level.
    """
    around: Any = current_trace()
    while around is not None and around is not _core.eval_trace:
        if getattr(around, "sees_all", False):
            return True
        around = getattr(around, "parent_trace", None) or getattr(around, "parent", None)
    return False


def trace_level() -> Any:
    """A token for the current trace, to be compared with `is`; it does not keep the trace alive.

    A trace that acts for its parent (as a capture does) shares the parent's token, so it is not a separate level.
    """
    return _core.trace_ctx.trace._weakref


def is_no_jax_array(value: Any, trace: Trace) -> bool:
    """Whether a value is of a kind that the trace of another library adds to JAX's, such as a sparse array of Quax."""
    if not _is_foreign(trace) or not isinstance(value, _core.Tracer):
        return False
    lowered = value.full_lower()
    return isinstance(lowered, _core.Tracer) and _is_foreign(lowered)


def _is_foreign(x: Any) -> bool:
    return not type(x).__module__.startswith(("jax.", "jaxlib.", "sonde."))


def is_outermost(level: Any) -> bool:
    """Whether a token from `trace_level` belongs to code that no JAX transform traces."""
    return level is _core.eval_trace._weakref


def start_trace(trace: Trace) -> None:
    """Makes a trace the current one, until `restore_thread_state`."""
    _core.trace_ctx.set_trace(trace)


def thread_state() -> tuple[Any, Any]:
    """The part of JAX's thread state that a run changes: the current trace and the open scopes."""
    return _core.trace_ctx.trace, _source_info._source_info_context.context


def restore_thread_state(state: tuple[Any, Any]) -> None:
    """Restores the current trace and the open scopes."""
    trace, scopes = state
    if _core.trace_ctx.trace is not trace:
        _core.trace_ctx.set_trace(trace)
    _source_info._source_info_context.context = scopes


def evaluates_early() -> bool:
    """Whether code runs under `jax.ensure_compile_time_eval`."""
    return _config.eager_constant_folding.value


def evaluated_late() -> Any:
    """A context manager that undoes `jax.ensure_compile_time_eval`."""
    return _config.eager_constant_folding(False)
