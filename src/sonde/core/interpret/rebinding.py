"""Sites that are bound again in another form, before JAX differentiates or maps the program that they are in.

What JAX does to a loop or a branch may lose what a site must know: in which iteration it is, whether its branch was
taken. So a site gets that as another operand, which goes through the transform with it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Self

from sonde import _jax
from sonde.core.interpret.handler import Handler
from sonde.core.interpret.rewrite import PROGRAMS
from sonde.core.interpret.trace import run_under
from sonde.core.session.state import capture_state


class Rebinding(Handler):
    """Binds every site again in another form, for the handlers around. It records nothing.

    Args:
        values: The operands that it adds; see `Handler.values`.
    """

    # Whether a while loop continues only where the operand is true.
    stops_loops = False
    # If the sites of a function with its own derivatives must not be inside its call: the handler for the call. The
    # function is then run once more, outside the call, for its sites.
    in_custom_calls: Rebinding | None = None

    def __init__(self, values: Any = ()) -> None:
        super().__init__(None, ())
        self.values = values

    def child(self, base: Any = 1, steps: Sequence[Any] = (), prefix: str | None = None) -> Self:
        """The handler inside. Tokens are given out by the handlers around."""
        del base
        return super().child(1, steps, prefix)

    def of_custom_call(self, outs: Sequence[Any]) -> list[Any]:
        """The outputs of a function with its own derivatives, or of its forward rule, which may not meet the sites."""
        return list(outs)


def rebound(
    jaxpr: Any,
    handler_of: Callable[..., Handler],
    *,
    front: Sequence[Any] = (),
    back: Sequence[Any] = (),
    types: Sequence[Any] | None = None,
    then: Callable[[list[Any], Sequence[Any]], list[Any]] | None = None,
    key: Hashable = None,
) -> Any:
    """A jaxpr, closed, whose sites were bound again under another handler, and which may take more inputs.

    Args:
        jaxpr: Open without constants, or closed.
        handler_of: The handler, given all inputs.
        front: The types of new inputs in front of the old ones.
        back: The types of new inputs after them.
        types: The types of the old inputs, where they are not those of the jaxpr.
        then: Changes the outputs, given these and all inputs.
        key: What the result depends on besides the jaxpr and the capture state. If it is given, the result is kept as
            long as the jaxpr lives.
    """
    kept_as = "rebound", key, capture_state()
    kept_programs = None if key is None else PROGRAMS.of(jaxpr)
    if kept_programs is not None and kept_as in kept_programs:
        return kept_programs[kept_as]
    own = [v.aval for v in _jax.open_jaxpr(jaxpr).invars] if types is None else list(types)
    n_front, n_old = len(front), len(own)

    def run(*flat: Any) -> list[Any]:
        outs = run_under(handler_of(*flat), _jax.eval_jaxpr, jaxpr, *flat[n_front : n_front + n_old])
        return outs if then is None else then(outs, flat)

    traced = _jax.trace_to_closed_jaxpr(run, [*front, *own, *back])
    if kept_programs is not None:
        kept_programs[kept_as] = traced
    return traced
