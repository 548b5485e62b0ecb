"""A program without its sites: what it would be if nothing in it were marked."""

from __future__ import annotations

from typing import Any

import numpy as np

from sonde import _jax
from sonde.core.marks.operands import NO_VALUE, TOKEN, TOKEN_TYPE
from sonde.core.marks.primitive import SiteEffect, marker_p, plain_p, site_p
from sonde.core.marks.scopes import ScopeName


def without_sites(jaxpr: _jax.Jaxpr) -> Any:
    """A jaxpr, open or closed, without sites and scopes; the same object if it has none."""
    return _without_sites(jaxpr, {})


def _without_sites(jaxpr: _jax.Jaxpr, results: dict[int, tuple[Any, Any]]) -> Any:
    """A jaxpr, open or closed, without sites and scopes; the same object if it has none."""
    if id(jaxpr) in results:
        return results[id(jaxpr)][1]
    opened = _jax.open_jaxpr(jaxpr)
    replaced: dict[Any, Any] = {}
    eqns: list[Any] = []

    def current(var: Any) -> Any:
        return replaced.get(var, var) if type(var) is _jax.Var else var

    for eqn in opened.eqns:
        invars = [*map(current, eqn.invars)]
        if eqn.primitive in (site_p, marker_p, plain_p):
            token = _jax.Literal(np.asarray(NO_VALUE, TOKEN), TOKEN_TYPE)
            outs = [*invars[: len(eqn.outvars)], token]
            if eqn.primitive is site_p and eqn.params["view"].gives_token(eqn.params["site"]):
                outs[len(eqn.outvars) - 1] = token
            replaced.update(zip(eqn.outvars, outs))
            continue
        params = _jax.with_jaxprs(eqn.params, lambda inner: _without_sites(inner, results))
        if params is not eqn.params:
            eqn = eqn.replace(params=params, effects=_without_effect(eqn.effects))
        eqn = _jax.without_names(eqn, ScopeName)
        eqns.append(eqn if invars == eqn.invars else eqn.replace(invars=invars))
    result = jaxpr
    if len(eqns) < len(opened.eqns) or any(a is not b for a, b in zip(eqns, opened.eqns)):
        result = _jax.with_equations(jaxpr, eqns, [*map(current, opened.outvars)], _without_effect(opened.effects))
    results[id(jaxpr)] = jaxpr, result  # holds the jaxpr too, so that its id is not reused
    return result


def _without_effect(effects: Any) -> Any:
    return type(effects)(effect for effect in effects if type(effect) is not SiteEffect)
