"""Sites that are bound again in another form, before JAX differentiates or maps the program that they are in.

What JAX does to a loop or a branch may lose what a site must know: in which iteration it is, whether its branch was
taken. So a site gets that as another operand, which goes through the transform with it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Self

import numpy as np

from sonde import _jax
from sonde.core.interpret.handler import Handler
from sonde.core.interpret.rewrite import PROGRAMS
from sonde.core.interpret.trace import run_under
from sonde.core.marks.site import Site, View
from sonde.core.session.session import capture_state

Bind = Callable[[Any, Sequence[Any], Site, View], list[Any]]
"""Binds a site again: given `Rebinding.values`, and the arguments, the site and the view of its equation."""


class Rebinding(Handler):
    """Binds every site again in another form, for the handlers around. It records nothing.

    Args:
        bind: How a site is bound.
        values: The operands that are added; see `Handler.values`.
        in_iteration: The values in an iteration of a scan inside, given the values around it and the number of the
            iteration. Without it they are the same in all iterations.
        stops_loops: See `Handler`.
        in_custom_calls: See `Handler`.
        of_custom_call: What becomes of the outputs of such a function, or of its forward rule, which may not meet the
            sites, given the values and the outputs.
    """

    def __init__(
        self,
        bind: Bind,
        values: Any = (),
        *,
        in_iteration: Callable[[Any, Any], Any] | None = None,
        stops_loops: bool = False,
        in_custom_calls: Rebinding | None = None,
        of_custom_call: Callable[[Any, Sequence[Any]], list[Any]] | None = None,
    ) -> None:
        super().__init__(None, ())
        self.values = values
        self.stops_loops = stops_loops
        self.in_custom_calls = in_custom_calls
        self._bind, self._in_iteration, self._of_custom_call = bind, in_iteration, of_custom_call

    def at_site(self, args: Sequence[Any], site: Site, view: View) -> list[Any]:
        """Binds the site again."""
        return self._bind(self.values, args, site, view)

    def loop_steps(self, length: int, reverse: bool) -> list[Any]:
        """The numbers of the iterations of a loop inside, if the values depend on them."""
        del reverse  # they need only differ
        return [] if self._in_iteration is None else [np.arange(length, dtype=np.int32)]

    def child(self, base: Any = 1, steps: Sequence[Any] = ()) -> Self:
        """The handler inside. Tokens are given out by the handlers around."""
        del base
        inner = super().child(1, steps)
        if steps and self._in_iteration is not None:
            inner.values = self._in_iteration(self.values, steps[0])
        return inner

    def of_custom_call(self, outs: Sequence[Any]) -> list[Any]:
        """The outputs of a function with its own derivatives, or of its forward rule."""
        return super().of_custom_call(outs) if self._of_custom_call is None else self._of_custom_call(self.values, outs)


def rebound(
    jaxpr: _jax.Jaxpr,
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
