"""Running single equations of a jaxpr again, and the lines of the user's code that made them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from jax._src import source_info_util as _source_info

from sonde._jax.jaxprs import open_jaxpr

__all__ = ["is_of_jax", "line_of", "run_equation"]

_JAX = str(Path(jax.__file__).parent)
_SONDE = str(Path(__file__).resolve().parent.parent)
_MACHINERY = tuple(f"{_SONDE}{os.sep}{part}{os.sep}" for part in ("_jax", "core", "inside", "port", "tools"))


def run_equation(eqn: Any, inputs: Sequence[Any], params: Mapping[str, Any] | None = None) -> list[Any]:
    """Runs one equation under the current trace, in its own scopes.

    Args:
        eqn: The equation.
        inputs: Its inputs.
        params: Parameters in place of its own.
    """
    bound: dict[str, Any] = eqn.primitive.get_bind_params(dict(eqn.params if params is None else params))
    names = _source_info.current_name_stack() + eqn.source_info.name_stack
    with _source_info.user_context(eqn.source_info.traceback, name_stack=names), eqn.ctx.manager:
        outs = eqn.primitive.bind(*inputs, **bound)
    return list(outs) if eqn.primitive.multiple_results else [outs]


def line_of(eqn: Any) -> str:
    """The line that made an equation, as `file:line`: of the user's code, else of a layer; `""` if of neither."""
    frames = [f for f in _source_info.user_frames(eqn.source_info.traceback) if not f.file_name.startswith(_MACHINERY)]
    frames = [f for f in frames if not f.file_name.startswith(_SONDE)] or frames
    return f"{frames[0].file_name}:{frames[0].start_line}" if frames else ""


def is_of_jax(jaxpr: Any) -> bool:
    """Whether a program inside an equation is a function of JAX, whose equations may be those of an earlier call."""
    about = open_jaxpr(jaxpr).debug_info
    return about is not None and _JAX in str(about.func_src_info)
