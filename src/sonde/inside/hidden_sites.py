"""The programs that `jax.make_jaxpr` returns to a captured function: without sites that may be missed.

Libraries compare such programs, count their equations and interpret them (Distrax inverts a function that way, Haiku
prints it). They have no use for the sites of functions that `inside=` reached through a package, and some refuse what
they do not know. So they get the program as it is without marks. When JAX evaluates it (`jax.core.eval_jaxpr`) or takes
it as the program of a loop, the one with sites runs in its place.

Nothing is hidden if a site was sown or requested by name, or if values are edited.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from sonde import _jax
from sonde.core import ByIdentity, capture_state, sites_inside, without_sites


@dataclasses.dataclass(frozen=True)
class _Marked:
    """A program with its sites.

    Attributes:
        jaxpr: The program; closed, if the shown one is.
        lacking: The constants that only sites use, by position: the shown program lacks them.
    """

    jaxpr: Any
    lacking: dict[int, Any]

    def with_constants(self, shown_constants: Sequence[Any]) -> list[Any]:
        """All constants, from those of the shown program."""
        remaining = iter(shown_constants)
        n = len(shown_constants) + len(self.lacking)
        return [self.lacking[i] if i in self.lacking else next(remaining) for i in range(n)]


_HIDDEN = ByIdentity[_Marked]()  # for each shown program, the one with sites that it was made of


def _with_sites(shown_jaxpr: Any) -> _Marked | None:
    """The program with sites, if a capture runs; None for a program that was not shown."""
    return None if capture_state() is None else _HIDDEN.get(shown_jaxpr)


def shown(jaxpr: _jax.Jaxpr) -> Any:
    """A program that was just made, without its sites if they may be missed."""
    state = capture_state()
    if state is None or state.inside is None or state.edits:
        return jaxpr
    if not all(state.may_miss(site_equation.site) for site_equation in sites_inside(jaxpr)):
        return jaxpr
    hidden = without_sites(_jax.open_jaxpr(jaxpr))
    if hidden is _jax.open_jaxpr(jaxpr):
        return jaxpr
    used = {v for eqn in hidden.eqns for v in eqn.invars if type(v) is _jax.Var}.union(
        v for v in hidden.outvars if type(v) is _jax.Var
    )
    consts = _jax.close_jaxpr(jaxpr).consts
    # A traced constant stays: this table must not keep it alive.
    lacking = {
        i: x
        for i, (v, x) in enumerate(zip(hidden.constvars, consts))
        if v not in used and not isinstance(x, _jax.Tracer)
    }
    hidden = _jax.with_constants(jaxpr, hidden, [i for i in range(len(consts)) if i not in lacking])
    _HIDDEN.set(hidden, _Marked(jaxpr, lacking))
    if _jax.open_jaxpr(hidden) is not hidden:
        _HIDDEN.set(_jax.open_jaxpr(hidden), _Marked(_jax.open_jaxpr(jaxpr), lacking))
    return hidden


def _to_evaluate(jaxpr: _jax.Jaxpr, consts: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    marked = _with_sites(jaxpr)
    return (jaxpr, consts) if marked is None else (marked.jaxpr, marked.with_constants(consts))


def _to_bind(params: dict[str, Any]) -> dict[str, Any]:
    if not _HIDDEN.entries:
        return params

    def whole(jaxpr: _jax.Jaxpr) -> Any:
        marked = _with_sites(jaxpr)
        return jaxpr if marked is None or _jax.close_jaxpr(jaxpr) is not jaxpr else marked.jaxpr

    return _jax.with_jaxprs(params, whole)


HIDING: _jax.InPlace = _jax.made_jaxprs(shown, _to_evaluate, _to_bind)
