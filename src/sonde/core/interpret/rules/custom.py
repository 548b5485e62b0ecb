"""Functions with their own derivatives, `custom_jvp` and `custom_vjp`.

The user's rule must survive when the captured function is differentiated from outside, so the call is bound again with
functions that return what was recorded as further outputs. Rules may be traced after the capture has ended, so the
capture state is set again for them, and what the handler carries is an operand of the call. If nothing around can
differentiate, the function is simply run.

A differentiation inside the capture does not use these rules: it runs the user's rules itself, on top of this trace,
and sites inside the forward and the backward rule are met like any others.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from sonde import _jax
from sonde.core.interpret.handler import Handler
from sonde.core.interpret.items import Item, build_items, expand, flat_arrays
from sonde.core.interpret.trace import CUSTOM_RULES, SiteTrace, run_under
from sonde.core.modules.call_stack import CalledFrom
from sonde.errors import CaptureError


class _Recorded:
    """What the function recorded, to which the outputs of its rules must conform."""

    def __init__(self, handler: Handler, what: str) -> None:
        self.handler = handler
        self.what = what
        self.carried = handler.carried()
        self.carried_types = [*map(_jax.typeof, self.carried)]
        self.n = len(self.carried)
        self.called_from = CalledFrom.now()
        self.calls = handler.counts.mark()
        self.inside = handler.entering()
        self.n_outs: int | None = None
        self.specs: list[Item] = []
        self.types: list[Any] = []

    def divide(self, operands: Sequence[Any], each: int = 1) -> tuple[Sequence[Any], Sequence[Any]]:
        """The operands of the user's function, and what the handler carries.

        The latter come last, because JAX knows the others by position.
        """
        n = len(operands) - each * self.n
        return operands[:n], operands[n:]

    def run(
        self, wrapped: Any, args: Sequence[Any], carried: Sequence[Any], *, beside: bool = False
    ) -> tuple[list[Any], list[Item]]:
        """Runs a function, or one of its rules, under a child of the handler; with `beside`, only for its records."""
        # The function and its rules are the same calls, run in different ways.
        self.handler.counts.return_to(self.calls)
        base = self.handler.carrying(carried).allot(1)
        child = self.inside.carrying(carried).child(base=base)
        with self.called_from.again():
            outs = run_under(child, _jax.call_beside if beside else _jax.call_again, wrapped, *args)
        self.handler.met.update(child.met)
        self.handler.skip(child.span)
        return list(outs), expand(child.items)

    def primal(self, outs: Sequence[Any], carried: Sequence[Any]) -> list[Any]:
        """The outputs of the function, or of a rule in its place."""
        return self.handler.carrying(carried).of_custom_call(outs)

    def settle(self, n_outs: int, items: list[Item]) -> None:
        """Fixes what is recorded: by the function, or by the first of its rules that runs."""
        self.n_outs = n_outs
        self.specs = [item.spec for item in items]
        self.types = [_jax.typeof(x) for x in flat_arrays(items)]

    def of_rule(self, n_outs: int, items: list[Item], run_function: Callable[[], list[Item]]) -> list[Any]:
        """The arrays that a derivative rule recorded, in the order of those of the function.

        A rule need not compute what the function computes. If it does not meet a site, the function is run as well.

        Args:
            n_outs: How many outputs the function has.
            items: What the rule recorded.
            run_function: Runs the function and returns what that recorded.
        """
        function_specs = self.specs if self.n_outs is not None else _specs_of(run_function)
        unmatched: dict[Any, list[Item]] = {}
        for item in items:
            unmatched.setdefault(_kind(item.spec), []).append(item)
        matched = [same.pop(0) if (same := unmatched.get(_kind(spec))) else None for spec in function_specs]
        if any(item is None for item in matched):
            matched = [of_item or own for of_item, own in zip(matched, run_function(), strict=True)]
        items = [item for item in matched if item is not None]
        if self.n_outs is None:  # nothing else has been promised yet
            self.settle(n_outs, items + [item for of_kind in unmatched.values() for item in of_kind])
            return flat_arrays([*items, *[item for of_kind in unmatched.values() for item in of_kind]])
        for of_kind in unmatched.values():
            if of_kind:
                site = of_kind[0].site
                raise CaptureError(
                    f"site {site.path!r} ({site.line}) cannot be captured: it is only in the derivative rule of a "
                    f"{self.what} function that is differentiated outside the capture; capture the differentiated "
                    "function instead"
                )
        return flat_arrays(items)

    def finish(self, outs: Sequence[Any]) -> list[Any]:
        """Gives the handler what was recorded; returns the outputs of the program.

        JAX keeps the rules as long as the program. From now on they refer to no value of the trace that ran the call.
        """
        assert self.n_outs is not None
        self.handler.items += build_items(self.specs, outs[self.n_outs :])
        self.handler, self.carried = self.handler.carrying(self.carried_types), []
        self.inside = self.inside.carrying(self.carried_types)
        self.handler.items, self.inside.items = [], []
        return list(outs[: self.n_outs])


def _specs_of(run: Callable[[], list[Item]]) -> list[Item]:
    """What running something would record, found without computing anything."""
    specs: list[Item] = []

    def traced() -> list[Any]:
        items = run()
        specs[:] = [item.spec for item in items]
        return flat_arrays(items)

    jax.eval_shape(traced)
    return specs


def _kind(spec: Item) -> Any:
    # How many times a value was differentiated depends on the rule that runs it, not on where it belongs. The choices
    # that led to it are made again.
    gates = frozenset(dataclasses.replace(gate, choice=None) for gate in spec.view.gates)
    return spec.path, spec.view.replace(order=0, gates=gates), spec.size


def custom_jvp_rule(
    trace: SiteTrace, primitive: _jax.Primitive, fun: Any, jvp: Any, args: Sequence[Any], *, symbolic_zeros: bool
) -> list[Any]:
    """A call of a `jax.custom_jvp` function."""
    trace = _with_sites_beside(trace, fun, args)
    if trace.parent is _jax.eval_trace:
        with _jax.set_current_trace(trace):
            return fun.call_wrapped(*args)
    recorded = _Recorded(trace.handler, "custom_jvp")

    def new_jvp(*primals_and_tangents: Any) -> list[Any]:
        # What the handler carries came as operands too, and so with tangents, which nothing uses.
        half = len(primals_and_tangents) // 2
        primals, carried = recorded.divide(primals_and_tangents[:half])
        tangents, _ = recorded.divide(primals_and_tangents[half:])
        outs, items = recorded.run(jvp, (*primals, *tangents), carried)
        n = len(outs) // 2
        values = recorded.of_rule(n, items, lambda: recorded.run(fun, primals, carried, beside=True)[1])
        # What was recorded is only looked at: no derivative goes through it.
        zeros = [_jax.instantiated_zero_tangent(v, symbolic=symbolic_zeros) for v in values]
        return [*recorded.primal(outs[:n], carried), *values, *outs[n:], *zeros]

    functions = [(_plain(recorded, fun), fun), (new_jvp, jvp)]
    outs = _jax.bind_custom_derivative(primitive, [*args, *recorded.carried], functions, symbolic_zeros=symbolic_zeros)
    return recorded.finish(outs)


def custom_vjp_rule(
    trace: SiteTrace,
    primitive: _jax.Primitive,
    fun: Any,
    fwd: Any,
    bwd: Any,
    args: Sequence[Any],
    *,
    out_trees: Callable[[], Any],
    symbolic_zeros: bool,
) -> list[Any]:
    """A call of a `jax.custom_vjp` function."""
    trace = _with_sites_beside(trace, fun, args)
    if trace.parent is _jax.eval_trace:
        with _jax.set_current_trace(trace):
            return fun.call_wrapped(*args)
    recorded = _Recorded(trace.handler, "custom_vjp")

    def new_fwd(*primals_and_flags: Any) -> list[Any]:
        primals, carried = recorded.divide(primals_and_flags, each=2)  # every operand, and whether it has a tangent
        returned, items = recorded.run(fwd, primals, carried[::2])
        residuals, outs = _jax.outputs_of_forward_rule(returned, primals[::2], out_trees)
        of_function = functools.partial(recorded.run, fun, primals[::2], carried[::2], beside=True)
        values = recorded.of_rule(len(outs), items, lambda: of_function()[1])
        return [*residuals, *recorded.primal(outs, carried[::2]), *values]

    def new_bwd(*residuals_and_cotangents: Any) -> Any:
        n = len(recorded.types)  # nothing flows back into what was only looked at
        arguments = residuals_and_cotangents[:-n] if n else residuals_and_cotangents
        return _jax.with_zero_cotangents(bwd.call_wrapped(*arguments), recorded.carried_types)

    functions = [(_plain(recorded, fun), fun), (new_fwd, fwd), (new_bwd, bwd)]
    trees = _jax.without_forwarding(out_trees)
    outs = _jax.bind_custom_derivative(
        primitive, [*args, *recorded.carried], functions, out_trees=trees, symbolic_zeros=symbolic_zeros
    )
    return recorded.finish(outs)


def _with_sites_beside(trace: SiteTrace, fun: Any, args: Sequence[Any]) -> SiteTrace:
    """The trace for the call itself. If sites cannot be in the call, the function has run for them before."""
    handler_of_call = trace.handler.in_custom_calls
    if handler_of_call is None:
        return trace
    with _jax.set_current_trace(trace):
        _jax.call_beside(fun, *args)
    return SiteTrace(trace.parent, handler_of_call)


def _plain(recorded: _Recorded, fun: Any) -> Callable[..., list[Any]]:
    def new_fun(*args: Any) -> list[Any]:
        operands, carried = recorded.divide(args)
        outs, items = recorded.run(fun, operands, carried)
        recorded.settle(len(outs), items)
        return [*recorded.primal(outs, carried), *flat_arrays(items)]

    return new_fun


CUSTOM_RULES["jvp"] = custom_jvp_rule
CUSTOM_RULES["vjp"] = custom_vjp_rule
