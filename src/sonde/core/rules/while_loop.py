"""`while_loop`, whose number of iterations nobody knows: the last iteration's values and the number of iterations.

On request the last few iterations are kept, in a ring that is put in order after the loop (`keeping`).

Under `vmap` with a mapped predicate the loop runs until the last element is done. The predicate is then an array, and
what the loop carries, ours included, has its axes in front: JAX leaves an element that has finished as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from sonde import _jax
from sonde.core.handler import Handler, Rebinding
from sonde.core.inside import gives_tokens, has_sites
from sonde.core.primitive import TOKEN, n_arrays, site_p
from sonde.core.rewrite import Rewritten, rewrite
from sonde.core.rules.keeping import Keep
from sonde.core.site import Site, View
from sonde.core.trace import RULES, SiteTrace, run_under

INDEX_TYPE = _jax.typeof(np.zeros((), np.int32))


def while_rule(trace: SiteTrace, args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """A while loop, or a `fori_loop` with bounds known only when it runs."""
    handler = trace.handler
    n_test, n_body = params["cond_nconsts"], params["body_nconsts"]
    test_consts, body_consts, init = args[:n_test], args[n_test : n_test + n_body], args[n_test + n_body :]
    body = _Part(params["body_jaxpr"], handler, body_consts)
    test = _Part(params["cond_jaxpr"], handler, test_consts)
    if not (body.new.specs or test.new.specs or handler.counts_iterations):
        # Nothing has to come out: the loop stays the loop it is.
        return _bind(test.new.jaxpr, test.front, body.new.jaxpr, body.front, init)
    active = _jax.open_jaxpr(params["cond_jaxpr"]).outvars[0].aval
    keep = Keep(body.new.specs, active, handler.last, handler.fold, body.unchanging)
    keep_test = Keep(test.new.specs, active, 1, handler.fold, test.unchanging)
    # The test runs once before the loop and once in every iteration. If somebody else looks at it too, it stays where
    # it is for them, and what is recorded of it here is computed once more. Otherwise the loop carries its answer.
    seen_by_others = handler.passes_on
    recorded_test = _Part(params["cond_jaxpr"], handler.quietly(), test_consts) if seen_by_others else test
    carries_answer = bool(test.new.specs) and not seen_by_others

    def run_test(carry: Sequence[Any], count: Any) -> tuple[list[Any], list[Any]]:
        """The answer, if the loop carries it, and what is kept of what was seen."""
        if not test.new.specs:
            return [], []
        (answer,), seen = recorded_test.run(carry, count)
        return [answer] * carries_answer, keep_test.first(seen)

    def divide(state: Sequence[Any]) -> tuple[Any, Any, Any, Any, Any]:
        """What the program carries, what is kept of body and test, how often the body ran, the answer of the test."""
        n, n_kept = len(init), body.new.n_extra
        carry, kept, (count, *rest) = state[:n], state[n : n + n_kept], state[n + n_kept :]
        return carry, kept, rest[carries_answer:], count, rest[:carries_answer]

    def go_on(*state: Any) -> list[Any]:
        carry, _, _, count, answer = divide(state)
        return answer if carries_answer else test.run(carry, count)[0]

    def step(*state: Any) -> list[Any]:
        carry, kept, kept_test, count, _ = divide(state)
        carry, seen = body.run(carry, count)
        kept = keep.update(count, seen, kept)
        answer, seen = run_test(carry, count + 1)
        return [*carry, *kept, count + 1, *answer, *keep_test.folded(count, seen, kept_test)]

    count = keep.no_iterations()
    answer, seen = run_test(init, count)
    start = [*init, *keep.empty(body.new.types), count, *answer, *seen]
    types = [*map(_jax.typeof, start)]
    final = _bind(*_jax.trace_to_jaxpr(go_on, types), *_jax.trace_to_jaxpr(step, types), start)
    carry, kept, kept_test, count, _ = divide(final)
    loop = object()
    handler.items += keep_test.items(kept_test, count, loop) + keep.items(kept, count, loop)
    return list(carry)


def _bind(test: Any, test_consts: Sequence[Any], body: Any, body_consts: Sequence[Any], init: Sequence[Any]) -> Any:
    return _jax.while_p.bind(
        *test_consts,
        *body_consts,
        *init,
        cond_nconsts=len(test_consts),
        cond_jaxpr=test,
        body_nconsts=len(body_consts),
        body_jaxpr=body,
    )


class _Part:
    """The test or the body of a loop, rewritten."""

    def __init__(self, jaxpr: Any, handler: Handler, consts: Sequence[Any]) -> None:
        self.numbered = handler.counts_iterations
        self.new: Rewritten = rewrite(jaxpr, handler, [INDEX_TYPE] * self.numbered)
        self.front = [*self.new.inputs(handler), *consts]

    def run(self, carry: Sequence[Any], count: Any) -> tuple[list[Any], list[Any]]:
        """The outputs of the program, and what was seen."""
        # An element that is still at it has run in every iteration.
        steps = [jnp.max(count)] * self.numbered
        outs = _jax.eval_jaxpr(self.new.jaxpr, *self.front, *carry, *steps)
        return outs[: self.new.n_outs], outs[self.new.n_outs :]

    @property
    def unchanging(self) -> list[bool]:
        """For each of the arrays that are recorded, whether it is just one of the constants."""
        jaxpr = _jax.open_jaxpr(self.new.jaxpr)
        consts = jaxpr.invars[: len(self.front)]
        return [any(x is const for const in consts) for x in jaxpr.outvars[self.new.n_outs :]]


RULES[_jax.while_p] = while_rule


# ---------------------------------------------------------------------------------------------------------------------
# Under remat JAX cannot save anything from inside a while loop, not even a token. It cannot differentiate the loop
# backwards either, so its sites are only looked at.
# ---------------------------------------------------------------------------------------------------------------------


class _LookOnly(Rebinding):
    """Divides every site into the value, which goes on as it is, and a look at it."""

    def __init__(self) -> None:
        super().__init__()
        self.in_custom_calls = _NoSites()  # JAX would save what a call with sites inside returns

    def at_site(self, args: Sequence[Any], site: Site, view: View) -> list[Any]:
        """Binds the look."""
        if not view.gives_token(site):
            return site_p.bind(*args, site=site, view=view)
        n, token = n_arrays(args, site, view), np.zeros((), TOKEN)
        if view.role == "site":
            before, gate = args[: n + view.anchored], args[n + view.anchored :]
            site_p.bind(*before, token, *gate, site=site, view=view.replace(role="look"))
        return [*args[:n], token]


class _NoSites(Rebinding):
    """Leaves sites out."""

    def at_site(self, args: Sequence[Any], site: Site, view: View) -> list[Any]:
        """The values, and a token that nobody will use."""
        values = [] if view.role == "look" else list(args[: n_arrays(args, site, view)])
        return [*values, np.zeros((), TOKEN)] if view.gives_token(site) else values


def _rewritten(params: dict[str, Any], handler: Rebinding, wants: Callable[[Any], bool]) -> dict[str, Any] | None:
    new = {}
    for name in ("cond_jaxpr", "body_jaxpr"):
        jaxpr = params[name]
        if wants(jaxpr):
            types = [v.aval for v in _jax.open_jaxpr(jaxpr).invars]
            run = functools.partial(run_under, handler, _jax.eval_jaxpr, jaxpr)
            new[name] = _jax.trace_to_closed_jaxpr(run, types)
    return {**params, **new} if new else None


def _without_tokens(params: dict[str, Any]) -> dict[str, Any] | None:
    return _rewritten(params, _LookOnly(), lambda jaxpr: has_sites(jaxpr) and gives_tokens(jaxpr))


def _met_already(forward: dict[str, Any], again: dict[str, Any]) -> dict[str, Any] | None:
    if not any(has_sites(forward[name]) for name in ("cond_jaxpr", "body_jaxpr")):
        return None
    return _rewritten(again, _NoSites(), has_sites)


_jax.prepare_while_loops_for_remat(_without_tokens, _met_already)
