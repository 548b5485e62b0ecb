"""Which sites are inside a jaxpr, and the jaxpr without them: what it would be if nothing in it were marked.

A jaxpr's effects say so at once, if JAX keeps them. Some primitives hide the effects of what is inside them
(`custom_vmap_call`, `custom_linear_solve`, `custom_root`), so without the effect a search is still needed. Answers are
cached as long as the jaxpr lives.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from sonde import _jax
from sonde.core.marks.operands import NO_VALUE, TOKEN, TOKEN_TYPE, operands_of
from sonde.core.marks.primitive import SiteEffect, marker_p, plain_p, site_p
from sonde.core.marks.scopes import ScopeName
from sonde.core.marks.site import Site, View
from sonde.core.session.caches import ByIdentity


class FoundSite(NamedTuple):
    """A site in a jaxpr.

    Attributes:
        site: The site.
        view: How its value is seen.
        types: The types of its arrays.
        loops: The scans around it, outermost first: how many of `names` are around each, and how long it is.
        names: The scopes around it, outermost first.
    """

    site: Site
    view: View
    types: tuple[Any, ...]
    loops: tuple[tuple[int, int], ...]
    names: tuple[Any, ...]


def has_sites(jaxpr: _jax.Jaxpr) -> bool:
    """Whether a site is anywhere inside."""
    return _have_sites.of(jaxpr)


def _has_sites(jaxpr: _jax.Jaxpr) -> bool:
    opened = _jax.open_jaxpr(jaxpr)
    return any(type(effect) is SiteEffect for effect in opened.effects) or bool(equations_with_sites(opened))


_have_sites = ByIdentity(_has_sites)


def equations_with_sites(jaxpr: _jax.Jaxpr) -> list[Any]:
    """The equations that are sites, or have sites inside, in program order."""
    return _equations.of(_jax.open_jaxpr(jaxpr))


def _has_sites_inside(eqn: _jax.Equation) -> bool:
    inner_jaxprs = _jax.sub_jaxprs(eqn.params)
    return bool(inner_jaxprs) and any(map(has_sites, inner_jaxprs))


_equations = ByIdentity(lambda jaxpr: [e for e in jaxpr.eqns if e.primitive is site_p or _has_sites_inside(e)])


def sites_inside(
    jaxpr: _jax.Jaxpr, loops: tuple[tuple[int, int], ...] = (), names: tuple[Any, ...] = ()
) -> Iterator[FoundSite]:
    """All sites inside, in program order."""
    for eqn in equations_with_sites(jaxpr):
        if eqn.primitive is site_p:
            view = eqn.params["view"]
            site = eqn.params["site"]
            types = tuple(v.aval for v in operands_of(eqn.invars, site, view).arrays)
            yield FoundSite(site, view, types, loops, names + _jax.names_of(eqn))
            continue
        for inner in _jax.sub_jaxprs(eqn.params):
            if has_sites(inner):
                below = names + _jax.names_of(eqn)
                entered = ((len(below), eqn.params["length"]),) if eqn.primitive is _jax.scan_p else ()
                yield from sites_inside(inner, loops + entered, below)


def first_site(jaxpr: _jax.Jaxpr) -> Site | None:
    """The first site inside, if any."""
    return next((found_site.site for found_site in sites_inside(jaxpr)), None)


def gradient_sites(jaxpr: _jax.Jaxpr) -> tuple[Site, ...]:
    """The sites whose gradients occur inside."""
    return _gradients.of(_jax.open_jaxpr(jaxpr))


_gradients = ByIdentity(lambda jaxpr: tuple(f.site for f in sites_inside(jaxpr) if not f.view.is_value))


def gives_tokens(jaxpr: _jax.Jaxpr) -> bool:
    """Whether a site inside gives out a token, so that the jaxpr needs the token to start from."""
    return _gives_tokens.of(_jax.open_jaxpr(jaxpr))


def _gives_token(eqn: _jax.Equation) -> bool:
    if eqn.primitive is site_p:
        return eqn.params["view"].gives_token(eqn.params["site"])
    return any(map(gives_tokens, filter(has_sites, _jax.sub_jaxprs(eqn.params))))


_gives_tokens = ByIdentity(lambda jaxpr: any(map(_gives_token, equations_with_sites(jaxpr))))


# ---------------------------------------------------------------------------------------------------------------------
# Without sites
# ---------------------------------------------------------------------------------------------------------------------


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
