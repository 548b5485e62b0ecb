"""Operations of a program: running one, the functions of the host it calls, and the lines that led to it."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jax._src import callback as _callback
from jax._src import debugging as _debugging
from jax._src import source_info_util as _source_info

from sonde._jax.imported import Equation, Jaxpr, Literal, Primitive, jit_p
from sonde._jax.jaxprs import close_jaxpr, make_jaxpr, open_jaxpr, sub_jaxprs, with_equations, with_jaxprs

__all__ = [
    "Frame",
    "current_source",
    "eval_opened",
    "frames_of",
    "has_callbacks",
    "has_effects_outside",
    "has_own_lines",
    "implementation_of",
    "is_backward",
    "lines_of",
    "program_of_call",
    "run_operation",
    "surroundings",
    "with_other_callbacks",
]


class Frame(NamedTuple):
    """A line of Python on the way to an equation."""

    file: str
    function: str
    line: int


_TRACING = "traced_implementation"

# Frames between JAX and the program: a line of these is never the place of an operation.
_SONDE = str(Path(__file__).resolve().parent.parent) + os.sep
_MACHINERY = tuple(_SONDE + part + os.sep for part in ("_jax", "core", "inside", "port", "programs", "tools"))


def run_operation(
    primitive: Primitive, params: dict[str, Any], values: Sequence[Any], context: Any = None, source: Any = None
) -> list[Any]:
    """Runs an equation under the current trace.

    Args:
        primitive: What it does.
        params: With which parameters.
        values: Its operands.
        context: The settings (mesh, `compute_on`) that it was made with.
        source: Where it was made: its scopes then are around it, and its line is that of what it binds.
    """
    bound = primitive.get_bind_params(dict(params))
    # 0.10 and later return the parameters alone; a pair would be the functions to bind as well.
    functions, bound = bound if isinstance(bound, tuple) else ((), bound)
    with surroundings(context, source):
        outs = primitive.bind(*functions, *values, **bound)
    return list(outs) if primitive.multiple_results else [outs]


@contextlib.contextmanager
def surroundings(context: Any = None, source: Any = None) -> Iterator[None]:
    """The settings and scopes of an equation, for what runs in its place; see `run_operation`."""
    with contextlib.ExitStack() as stack:
        if source is not None:
            names = _source_info.current_name_stack() + source.name_stack
            stack.enter_context(_source_info.user_context(source.traceback, name_stack=names))
        if context is not None:
            stack.enter_context(context.manager)
        yield


def program_of_call(eqn: Equation) -> Any | None:
    """The program of a jitted call that says nothing of devices: its equations may run one by one. Else None."""
    if eqn.primitive is not jit_p:
        return None
    shardings = (*eqn.params.get("in_shardings", ()), *eqn.params.get("out_shardings", ()))
    return eqn.params["jaxpr"] if all(type(s).__name__ == "UnspecifiedValue" for s in shardings) else None


def eval_opened(jaxpr: Jaxpr, *args: Any) -> list[Any]:
    """Runs a jaxpr under the current trace one equation after the other, also those in jitted calls.

    Such a call would be compiled by itself: each anew, if many layers have one.
    """
    opened, consts = open_jaxpr(jaxpr), getattr(close_jaxpr(jaxpr), "consts", ())
    env = dict(zip([*opened.constvars, *opened.invars], [*consts, *args]))

    def read(v: Any) -> Any:
        return v.val if isinstance(v, Literal) else env[v]

    used_last = {v: i for i, eqn in enumerate(opened.eqns) for v in eqn.invars if not isinstance(v, Literal)}
    for v in opened.outvars:
        used_last.pop(v, None) if not isinstance(v, Literal) else None
    for i, eqn in enumerate(opened.eqns):
        values = [read(v) for v in eqn.invars]
        called = program_of_call(eqn)
        if called is None:
            outs = run_operation(eqn.primitive, eqn.params, values, eqn.ctx, eqn.source_info)
        else:
            with surroundings(eqn.ctx, eqn.source_info):
                outs = eval_opened(called, *values)
        for v in eqn.invars:  # what is not used again need not stay in memory
            if not isinstance(v, Literal) and used_last.get(v) == i:
                env.pop(v, None)
        env.update(zip(eqn.outvars, outs))
    return [read(v) for v in opened.outvars]


def current_source() -> Any:
    """Where the running code is, in the form in which equations have it."""
    return _source_info.current()


def frames_of(source: Any) -> list[Frame]:
    """The lines of Python that led to an equation, innermost first, without JAX's own."""
    traceback = source.traceback
    if traceback is None:
        return []
    frames = []
    for frame in _source_info.user_frames(traceback):
        if frame.file_name == __file__ and frame.function_name.endswith(_TRACING):
            break  # traced by `implementation_of`: the program is not around it
        frames.append(Frame(frame.file_name, frame.function_name, frame.start_line))
    return frames


def implementation_of(primitive: Primitive, params: dict[str, Any], types: Sequence[Any]) -> Any:
    """The program behind a primitive of another package, whose implementation is a function of JAX operations.

    Solvers define such primitives for linear solves and for loops with checkpoints.

    Returns:
        A closed jaxpr; None if the primitive is one of JAX, or if its implementation cannot be traced.
    """
    implementation = primitive.impl
    while isinstance(implementation, functools.partial):
        implementation = implementation.func
    if (getattr(implementation, "__module__", None) or "jax").partition(".")[0] in ("jax", "jaxlib", "sonde"):
        return None

    def traced_implementation(*values: Any) -> Any:
        return primitive.impl(*values, **params)

    try:
        program = make_jaxpr(traced_implementation)(*types)
    except Exception:  # it wants numbers, or is to be lowered only
        return None
    return None if _binds(program, primitive) else program  # a wrapper of JAX's own implementation binds it again


def _binds(jaxpr: Jaxpr, primitive: Primitive) -> bool:
    equations = open_jaxpr(jaxpr).eqns
    return any(e.primitive is primitive or any(_binds(j, primitive) for j in sub_jaxprs(e.params)) for e in equations)


def lines_of(sources: Sequence[Any]) -> tuple[str, ...]:
    """The lines that led to an equation, innermost first, each as `file:line`: of the user's code, else of layers.

    Args:
        sources: Where it was made, and then the calls around it, innermost first.
    """
    frames = [f for source in sources for f in frames_of(source) if not f.file.startswith(_MACHINERY)]
    frames = [f for f in frames if not f.file.startswith(_SONDE)] or frames
    return tuple(dict.fromkeys(f"{f.file}:{f.line}" for f in frames))


def has_own_lines(source: Any, jaxpr: Jaxpr) -> bool:
    """Whether the lines of an equation are in the program that it is part of.

    JAX traces its own jitted functions once. If that was in a backward pass, their equations have lines of that pass.
    """
    file = getattr(jaxpr.debug_info, "func_filename", None)
    if source.traceback is None or file is None or _source_info.is_user_filename(file):
        return True
    if jaxpr.debug_info.traced_for != "jit":
        return True
    return any(code.co_filename == file for code in source.traceback.raw_frames()[0])


def is_backward(source: Any) -> bool:
    """Whether an equation is part of a backward pass."""
    return any(
        isinstance(element, _source_info.Transform) and element.name == "transpose"
        for element in source.name_stack.stack
    )


_WITH_RESULTS = {_callback.pure_callback_p, _callback.io_callback_p}
_WITHOUT_RESULTS = {_debugging.debug_callback_p, _debugging.debug_print_p}


def has_callbacks(primitive: Primitive, params: dict[str, Any]) -> bool:
    """Whether an equation calls functions of the host, itself or inside."""
    if primitive in _WITH_RESULTS or primitive in _WITHOUT_RESULTS:
        return True
    return any(has_callbacks(e.primitive, e.params) for j in sub_jaxprs(params) for e in open_jaxpr(j).eqns)


def has_effects_outside(primitive: Primitive, params: dict[str, Any]) -> bool:
    """Whether an equation calls functions of the host that have side effects and results, itself or inside."""
    if primitive is _callback.io_callback_p:
        return True
    return any(has_effects_outside(e.primitive, e.params) for j in sub_jaxprs(params) for e in open_jaxpr(j).eqns)


def with_other_callbacks(
    primitive: Primitive, params: dict[str, Any], change: Any, *, prints: bool = False
) -> dict[str, Any] | None:
    """The parameters of an equation whose functions of the host are replaced, here and inside.

    Args:
        primitive: The primitive of the equation.
        params: Its parameters.
        change: Makes a new function of the old one, of the types of its results, and of whether it has side effects.
        prints: Whether functions that return nothing, as prints do, are kept; they are left out otherwise.

    Returns:
        The new parameters; None if the equation itself is to be left out.
    """
    if primitive in _WITHOUT_RESULTS:
        return params if prints else None
    if primitive in _WITH_RESULTS:
        has_effects = primitive is _callback.io_callback_p
        return {**params, "callback": change(params["callback"], params["result_avals"], has_effects)}

    def changed(jaxpr: Jaxpr) -> Any:
        inner = open_jaxpr(jaxpr)
        if not any(has_callbacks(e.primitive, e.params) for e in inner.eqns):
            return jaxpr
        eqns = []
        for eqn in inner.eqns:
            changed_params = with_other_callbacks(eqn.primitive, eqn.params, change, prints=prints)
            if changed_params is not None:
                eqns.append(eqn if changed_params is eqn.params else eqn.replace(params=changed_params))
        return with_equations(jaxpr, eqns, inner.outvars, inner.effects)

    return with_jaxprs(params, changed)
