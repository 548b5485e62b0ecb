"""A scope made with `flax.core` as the parent of a module: both see the same variables.

Code that works with `flax.core` by hand makes a `flax.core.Scope` and gives it to a module as its parent. Flax is not
imported here; a scope is known by what it offers.
"""

from __future__ import annotations

from typing import Any

from sonde.linen.filters import check, matches
from sonde.linen.frozen_dict import unfreeze
from sonde.linen.rng import Stream
from sonde.linen.scope import Run, Scope


def is_flax_scope(value: Any) -> bool:
    """Whether a value is a scope of `flax.core`."""
    # Asked of the class: a module would run its setup to find an attribute.
    return all(hasattr(type(value), name) for name in ("push", "rewound", "make_rng", "is_collection_empty"))


def scope_on(foreign: Any) -> Scope:
    """A scope of ours on the variables and random streams of one of `flax.core`."""
    run = Run(mutable=check(foreign.mutable))
    roots = foreign.root._variables
    for name in list(roots):
        if matches(run.mutable, name):
            roots[name] = unfreeze(roots[name])
    streams = {name: Stream(lazy.rng, tuple(lazy.suffix)) for name, lazy in foreign.rngs.items()}
    path = tuple(foreign.path)
    # A path given to a root is a label alone: its variables lie at the top.
    return Scope(run, roots, path=path, tail=() if foreign.root is foreign else path, streams=streams)
