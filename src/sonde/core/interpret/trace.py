"""The trace under which a captured function runs.

Values flow through it raw, not wrapped: Python control flow on concrete values keeps working, and one pass is enough.
Every primitive is bound again on the trace around it; a site goes to the handler; a higher-order primitive with sites
inside goes to its rule. A primitive that has sites inside and no rule is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sonde import _jax
from sonde.core.interpret.handler import Handler
from sonde.core.interpret.items import in_runs_of_maps
from sonde.core.marks.primitive import marker_p, site_p
from sonde.core.marks.site import Site, View
from sonde.core.marks.site_search import has_sites, sites_inside
from sonde.core.modules.copies import FollowedArrays
from sonde.core.session.debug_nans import checking_results
from sonde.core.session.session import capture_state
from sonde.errors import CaptureError

Rule = Callable[["SiteTrace", Sequence[Any], dict[str, Any]], list[Any]]

# Filled by sonde.core.interpret.rules.
RULES: dict[Any, Rule] = {}
CUSTOM_RULES: dict[str, Callable[..., Any]] = {}


class UnwrappedTrace(_jax.Trace):
    """A trace on top of another one, under which values stay as they are: there are no tracers of it.

    Attributes:
        parent: The trace around.
        handler: What is done at sites.
        changed: Notes on arrays that are computed here, if any.
    """

    __slots__ = ("changed", "handler", "parent")

    def __init__(self, parent: _jax.Trace, handler: Handler) -> None:
        super().__init__()
        self.parent: Any = parent
        self.handler = handler
        self.changed: FollowedArrays | None = None
        self.requires_low = getattr(parent, "requires_low", True)
        # Code that compares trace levels (Variables refuse to be changed from another one) must not see a new level,
        # and jit's fast path must not see a new cache key.
        self._weakref = parent._weakref

    def stage_value(self, val: Any) -> Any:
        """Lifts a value into the trace around."""
        return self.parent.stage_value(val)

    def cur_qdd(self, x: Any) -> Any:
        """The current content of a mutable object whose type JAX tracks."""
        with _jax.set_current_trace(self.parent):
            return self.parent.cur_qdd(x)

    def process_call(self, call_primitive: Any, f: Any, tracers: Sequence[Any], params: dict[str, Any], /) -> Any:
        """A call that JAX inlines is inlined."""
        with _jax.set_current_trace(self):
            return f.call_wrapped(*tracers)


class SiteTrace(UnwrappedTrace):
    """Runs a function on behalf of a handler."""

    __slots__ = ()

    def invalidate(self) -> None:
        """Ends the trace. JAX may keep a trace inside it with a program, and with that this one, but no values."""
        super().invalidate()
        self.changed = None
        del self.handler

    def at_site(self, args: Sequence[Any], site: Site, view: View) -> list[Any]:
        """Hands a site to the handler."""
        before = len(self.handler.items)
        with _jax.set_current_trace(self.parent):
            outs = self.handler.at_site(args, site, view)
        self._note_maps(before)
        return outs

    def follow(self, rule: Callable[..., Any], *args: Any, **params: Any) -> Any:
        """Follows a rule, under the trace around."""
        before = len(self.handler.items)
        with _jax.set_current_trace(self.parent):
            outs = rule(self, *args, **params)
        self._note_maps(before)
        return outs

    def follow_primitive(self, rule: Callable[..., Any], args: Sequence[Any], params: dict[str, Any]) -> Any:
        """Follows the rule of a primitive; JAX's checks for NaN see the results of the program alone."""
        if self.parent is not _jax.eval_trace:
            return self.follow(rule, args, params)
        items = self.handler.items
        before = len(items)
        return checking_results(
            lambda: self.follow(rule, args, params),
            lambda outs: outs,
            lambda: items.__delitem__(slice(before, None)),
        )

    def _note_maps(self, before: int) -> None:
        """Notes the calls of `vmap` in which the items after the first ones were recorded."""
        items = self.handler.items
        if len(items) > before and (runs := _jax.runs_of_maps(self.parent)):
            items[before:] = in_runs_of_maps(items[before:], runs)

    def process_primitive(self, primitive: _jax.Primitive, tracers: Sequence[Any], params: dict[str, Any], /) -> Any:
        """Binds a primitive on the trace around, unless it has sites."""
        if primitive is _jax.jit_p:  # first, being the most frequent
            inside = has_sites(params["jaxpr"])
            if True in params["donated_invars"]:
                tracers = self.not_donated(tracers, params["donated_invars"])
        elif primitive is site_p:
            return self.at_site([*map(_jax.not_a_literal, tracers)], params["site"], params["view"])
        elif primitive is marker_p:
            # With no transform around, nothing will transpose the marker.
            return list(tracers[:-1]) if self.parent is _jax.eval_trace else self._bind(primitive, tracers, params)
        else:
            inner_programs = _jax.sub_jaxprs(params)
            inside = bool(inner_programs) and any(map(has_sites, inner_programs))
        rule = RULES.get(primitive) if inside else None
        if inside and rule is None:
            anyhow = primitive.name.startswith(_APPLIED_ANYHOW)
            check_may_miss_all(primitive, params, *(["XLA calls as often and in what order it likes"] * anyhow))
        if rule is not None:
            outs = self.follow_primitive(rule, tracers, params)
            if self.changed is not None:
                self.changed.note(primitive, params, tracers, outs)
            return outs
        if type(primitive) is _jax.Primitive:  # what `bind` does, without repeating the part that is already done
            outs = self.parent.process_primitive(primitive, tracers, params)
        else:
            outs = self._bind(primitive, tracers, params)
        if self.changed is not None:
            self.changed.note(primitive, params, tracers, outs)
        return outs

    def not_donated(self, args: Sequence[Any], donated: Sequence[bool]) -> Sequence[Any]:
        """The arguments of a jitted call: if it runs now, what it donates is copied if it is recorded."""
        if any(isinstance(x, _jax.Tracer) for x in args):
            return args
        with _jax.set_current_trace(_jax.eval_trace):
            return self.handler.not_donated(args, donated)

    def _bind(self, primitive: _jax.Primitive, tracers: Sequence[Any], params: dict[str, Any]) -> Any:
        with _jax.set_current_trace(self.parent):
            return primitive.bind(*tracers, **params)

    def process_custom_jvp_call(
        self, primitive: _jax.Primitive, fun: Any, jvp: Any, tracers: Sequence[Any], /, **params: Any
    ) -> Any:
        """A function with its own forward derivative."""
        return self.follow(CUSTOM_RULES["jvp"], primitive, fun, jvp, tracers, **params)

    def process_custom_vjp_call(
        self, primitive: _jax.Primitive, fun: Any, fwd: Any, bwd: Any, tracers: Sequence[Any], /, **params: Any
    ) -> Any:
        """A function with its own backward pass."""
        return self.follow(CUSTOM_RULES["vjp"], primitive, fun, fwd, bwd, tracers, **params)

    def process_shard_map(self, primitive: _jax.Primitive, fun: Any, args: Sequence[Any], /, **params: Any) -> Any:
        """A function that runs per shard."""
        return self.follow(CUSTOM_RULES["shard_map"], primitive, fun, args, **params)


# The beginnings of the names of primitives whose function combines two elements: XLA decides which.
_APPLIED_ANYHOW = ("reduce", "scatter", "select_and_scatter")


def run_under(handler: Handler, fn: Callable, *args: Any) -> Any:
    """Runs `fn` with `handler` at its sites, on top of the current trace."""
    trace = SiteTrace(_jax.current_trace(), handler)
    try:
        with _jax.set_current_trace(trace):
            return fn(*args)
    finally:
        trace.invalidate()


def check_may_miss_all(primitive: _jax.Primitive, params: dict[str, Any], why: str = "Sonde has no rule for") -> None:
    """Checks the sites in a primitive that has no rule, or none for this case: there they are not seen.

    Raises:
        CaptureError: A site was sown, or is in a function that was requested by name.
    """
    site = site_not_to_miss(params)
    if site is not None:
        raise cannot_capture(site, primitive, params, why)


def site_not_to_miss(params: dict[str, Any]) -> Site | None:
    """The first site in a primitive that was sown, or is in a function that was requested by name."""
    state = capture_state()
    sites = (equation.site for jaxpr in _jax.sub_jaxprs(params) for equation in sites_inside(jaxpr))
    return next((site for site in sites if state is None or not state.may_miss(site)), None)


def cannot_capture(site: Site, primitive: _jax.Primitive, params: dict[str, Any], why: str) -> CaptureError:
    """The error for a site in a primitive in which it cannot be seen."""
    return CaptureError(
        f"site {site.path!r} ({site.line}) cannot be captured: it is inside a {_name_of(primitive, params)!r}, which "
        f"{why}; sow the value before or after it"
    )


def _name_of(primitive: _jax.Primitive, params: dict[str, Any]) -> str:
    return type(params["_prim"]).__name__ if "_prim" in params else primitive.name
