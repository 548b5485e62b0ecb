"""Single equations of a jaxpr: running one, and where in the user's code it was made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jax._src import source_info_util as _source_info

__all__ = ["bind_equation", "line_of"]

_SONDE = str(Path(__file__).resolve().parent.parent)


def bind_equation(eqn: Any, inputs: Sequence[Any], params: Mapping[str, Any] | None = None) -> list[Any]:
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
    """The line that made an equation, as `file:line`: of the user's code, or of Sonde's if there is no other; or ""."""
    frames = list(_source_info.user_frames(eqn.source_info.traceback))
    own = [frame for frame in frames if not frame.file_name.startswith(_SONDE)]
    for frame in own or frames:
        return f"{frame.file_name}:{frame.start_line}"
    return ""
