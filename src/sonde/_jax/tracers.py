"""Tracers: which have ended, where they come from, and those that are marked in place."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from jax._src import core as _core
from jax._src.interpreters import batching as _batching
from jax._src.interpreters import partial_eval as _pe

from sonde._jax.imported import Primitive, Tracer, eval_trace
from sonde._jax.traces import current_trace

__all__ = ["MadeBy", "become", "copy_of_tracer", "has_ended", "origin_of"]


def has_ended(value: Any) -> bool:
    """Whether a value is a tracer of a trace that has ended: one that is neither current nor around it.

    JAX marks most traces as ended, but not those of jitted functions. If it does not say what is around a trace, the
    result is False.
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


class MadeBy(NamedTuple):
    """The equation that has a tracer among its outputs; or a variable, and then the inputs are variables too."""

    primitive: Primitive
    params: dict[str, Any]
    position: int
    inputs: Sequence[Any]


def origin_of(tracer: Any) -> Any:
    """The equation that made a tracer, or the value behind it; None if neither is known."""
    if isinstance(tracer, _pe.DynamicJaxprTracer):
        value = _core.full_lower(tracer)
        if value is not tracer:
            return value
        eqn = tracer.parent
        if eqn is None or not any(v is tracer.val for v in eqn.outvars):
            return None
        position = [v is tracer.val for v in eqn.outvars].index(True)
        return MadeBy(eqn.primitive, eqn.params, position, eqn.in_tracers)
    if isinstance(tracer, _batching.BatchTracer):
        return tracer.val
    return getattr(tracer, "primal", None)


def copy_of_tracer(tracer: Tracer) -> Tracer:
    """Another tracer for the same value, for equations to keep."""
    copied = object.__new__(type(tracer))
    _take_over(copied, tracer)
    return copied


def become(tracer: Tracer, other: Any, copied: Tracer) -> bool:
    """Makes a tracer stand for the value of another one, for everything that holds it; False if it cannot.

    It can if both belong to the same trace. Earlier equations that use the tracer look up its variable only when the
    trace ends, so they are given `copied`, a copy of the tracer as it was.
    """
    if type(other) is not type(tracer) or other._trace is not tracer._trace or hasattr(tracer, "recipe"):
        return False
    frame = getattr(tracer._trace, "frame", None)
    for entry in reversed(frame.tracing_eqns if frame is not None else ()):
        eqn: Any = entry() if isinstance(entry, weakref.ref) else entry
        if eqn is None:
            continue
        if eqn is getattr(tracer, "parent", None):  # no earlier equation uses the tracer
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
    names = [name for kind in cls.__mro__ for name in getattr(kind, "__slots__", ())]
    return [name for name in names if name not in ("__weakref__", "__dict__")]
