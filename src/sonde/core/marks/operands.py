"""The operands of the site primitive: the only code that takes them apart and puts them together.

    value     *arrays [anchor] [gate] *active             -> *arrays [token]
    look      *arrays anchor [token] [gate] *active       ->
    gradient  *cotangents token [gate] *active            -> *cotangents

The token is an int32 that tells calls apart: a function that is compiled once and called twice has one `Site`, two
values and, perhaps, one gradient. The number travels from the value to its gradient as a residual, so a gradient is
never given to the wrong call. The gate is a boolean that says whether the branch with the site was taken; it appears
when `vmap` turns a `cond` into a select, where both branches run. `active` holds one scalar for every `while_loop`
around the site whose predicate is being batched; it only shows the batching rule the loop's axis, and is dropped
there. The anchor is the number of the iteration; it appears when a loop is differentiated, which would otherwise move a
site whose value does not change out of the loop. A site that is only recorded is split in two there, so that the value
itself can still be moved (see `View.role`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sonde import _jax
from sonde.core.marks.site import PLAIN, Site, View

TOKEN = np.dtype("int32")
TOKEN_TYPE = _jax.typeof(np.zeros((), TOKEN))
NO_VALUE = -1  # the token of a gradient whose value was not computed
WRITTEN_DOWN = -2  # from here on down: tokens that are constants of a program, the same in every run


@dataclasses.dataclass(slots=True)
class Operands:
    """The operands of a site, or their mapped dimensions, or anything else with one entry per operand."""

    arrays: list[Any]
    anchor: Any = None
    token: Any = None
    gate: Any = None
    active: tuple[Any, ...] = ()

    def flat(self, site: Site, view: View) -> list[Any]:
        """In the order in which the primitive takes them."""
        return [*self.arrays, *[getattr(self, name) for name in _further(site, view)], *self.active]

    @property
    def extras(self) -> dict[str, Any]:
        """The extras, by their names in `Axis.lacking` and `Item.extras`."""
        named = {"token": self.token, "taken": self.gate}
        return {name: x for name, x in named.items() if x is not None}


def _further(site: Site, view: View) -> Iterator[str]:
    if view.anchored:
        yield "anchor"
    if not view.is_value or (view.role == "look" and site.grads):
        yield "token"
    if view.gates:
        yield "gate"


def operands_of(args: Sequence[Any], site: Site, view: View) -> Operands:
    """The operands of an equation, by kind."""
    if view is PLAIN:  # as most are
        return Operands(list(args))
    names = list(_further(site, view))
    n = len(args) - len(names) - len(view.whiles)
    return Operands(list(args[:n]), active=tuple(args[n + len(names) :]), **dict(zip(names, args[n : n + len(names)])))
