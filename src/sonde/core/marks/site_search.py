"""Whether, and which, sites are inside a jaxpr.

A jaxpr's effects say so at once, if JAX keeps them. Some primitives hide the effects of what is inside them
(`custom_vmap_call`, `custom_linear_solve`, `custom_root`), so without the effect a search is still needed. Answers are
cached as long as the jaxpr lives.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from sonde import _jax
from sonde.core.marks.operands import operands_of
from sonde.core.marks.primitive import SiteEffect, site_p
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
