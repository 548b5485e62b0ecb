"""The programs that `jax.make_jaxpr` returns to a captured function: without sites that may be missed.

Libraries compare such programs, count their equations and interpret them (Distrax inverts a function that way, Haiku
prints it). They have no use for the sites of functions that `inside=` reached through a package, and some refuse what
they do not know. So they get the program as it is without marks. When JAX evaluates it (`jax.core.eval_jaxpr`) or takes
it as the program of a loop, the one with sites runs in its place.

Nothing is hidden if a site was sown or requested by name, or if values are edited.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from sonde import _jax
from sonde.core.marks.operands import NO_VALUE, TOKEN, TOKEN_TYPE
from sonde.core.marks.primitive import SiteEffect, marker_p, plain_p, site_p
from sonde.core.marks.scopes import ScopeName
from sonde.core.marks.site_search import sites_inside
from sonde.core.session.state import capture_state


@dataclasses.dataclass(frozen=True)
class _Marked:
    """A program with its sites.

    Attributes:
        jaxpr: The program; closed, if the shown one is.
        lacking: The constants that only sites use, by position: the shown program lacks them.
    """

    jaxpr: Any
    lacking: dict[int, Any]

    def with_constants(self, given: Sequence[Any]) -> list[Any]:
        """All constants, from those of the shown program."""
        remaining = iter(given)
        n = len(given) + len(self.lacking)
        return [self.lacking[i] if i in self.lacking else next(remaining) for i in range(n)]


_marked: dict[int, tuple[weakref.ref[Any], _Marked]] = {}


def _note(shown: Any, marked: _Marked) -> None:
    key = id(shown)
    _marked[key] = weakref.ref(shown, lambda _: _marked.pop(key, None)), marked


def _marked_of(shown: Any) -> _Marked | None:
    found = _marked.get(id(shown))
    return None if found is None or found[0]() is not shown or capture_state() is None else found[1]


def shown(jaxpr: Any) -> Any:
    """A program that was just made, without its sites if they may be missed."""
    state = capture_state()
    if state is None or state.inside is None or state.edits:
        return jaxpr
    if not all(state.may_miss(found.site) for found in sites_inside(jaxpr)):
        return jaxpr
    new = _without_sites(_jax.open_jaxpr(jaxpr), {})
    if new is _jax.open_jaxpr(jaxpr):
        return jaxpr
    used = {v for eqn in new.eqns for v in eqn.invars if type(v) is _jax.Var}.union(
        v for v in new.outvars if type(v) is _jax.Var
    )
    # A traced constant stays: this table must not keep it alive.
    lacking = {
        i: x
        for i, (v, x) in enumerate(zip(new.constvars, jaxpr.consts))
        if v not in used and not isinstance(x, _jax.Tracer)
    }
    new = _jax.with_constants(jaxpr, new, [i for i in range(len(jaxpr.consts)) if i not in lacking])
    _note(new, _Marked(jaxpr, lacking))
    if _jax.open_jaxpr(new) is not new:
        _note(_jax.open_jaxpr(new), _Marked(_jax.open_jaxpr(jaxpr), lacking))
    return new


def _without_sites(jaxpr: Any, known: dict[int, tuple[Any, Any]]) -> Any:
    """A jaxpr, open or closed, without sites and scopes; the same object if it has none."""
    if id(jaxpr) in known:
        return known[id(jaxpr)][1]
    old = _jax.open_jaxpr(jaxpr)
    replaced: dict[Any, Any] = {}
    eqns: list[Any] = []

    def now(var: Any) -> Any:
        return replaced.get(var, var) if type(var) is _jax.Var else var

    for eqn in old.eqns:
        invars = [*map(now, eqn.invars)]
        if eqn.primitive in (site_p, marker_p, plain_p):
            token = _jax.Literal(np.asarray(NO_VALUE, TOKEN), TOKEN_TYPE)
            outs = [*invars[: len(eqn.outvars)], token]
            if eqn.primitive is site_p and eqn.params["view"].gives_token(eqn.params["site"]):
                outs[len(eqn.outvars) - 1] = token
            replaced.update(zip(eqn.outvars, outs))
            continue
        params = _jax.with_jaxprs(eqn.params, lambda inner: _without_sites(inner, known))
        if params is not eqn.params:
            eqn = eqn.replace(params=params, effects=_without_effect(eqn.effects))
        eqn = _jax.without_names(eqn, ScopeName)
        eqns.append(eqn if invars == eqn.invars else eqn.replace(invars=invars))
    new = jaxpr
    if len(eqns) < len(old.eqns) or any(a is not b for a, b in zip(eqns, old.eqns)):
        new = _jax.with_equations(jaxpr, eqns, [*map(now, old.outvars)], _without_effect(old.effects))
    known[id(jaxpr)] = jaxpr, new  # with the jaxpr itself: its id stays its own
    return new


def _without_effect(effects: Any) -> Any:
    return type(effects)(effect for effect in effects if type(effect) is not SiteEffect)


def _to_evaluate(jaxpr: Any, consts: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    marked = _marked_of(jaxpr)
    return (jaxpr, consts) if marked is None else (marked.jaxpr, marked.with_constants(consts))


def _to_bind(params: dict[str, Any]) -> dict[str, Any]:
    if not _marked:
        return params

    def whole(jaxpr: Any) -> Any:
        marked = _marked_of(jaxpr)
        return jaxpr if marked is None or _jax.close_jaxpr(jaxpr) is not jaxpr else marked.jaxpr

    return _jax.with_jaxprs(params, whole)


showing: _jax.InPlace = _jax.made_jaxprs(shown, _to_evaluate, _to_bind)
