"""A scope made with `flax.core` as the parent of a module: both see the same variables.

Code that works with `flax.core` by hand makes a `flax.core.Scope` and gives it to a module as its parent. Flax is not
imported here; a scope is recognized by its attributes.
"""

from __future__ import annotations

from typing import Any

from sonde.linen.variables.filters import check, matches
from sonde.linen.variables.frozen_dict import unfreeze
from sonde.linen.variables.rng import Stream
from sonde.linen.variables.scope import Run, Scope


def is_flax_scope(value: object) -> bool:
    """Whether a value is a scope of `flax.core`."""
    # Look at the class: looking up an attribute of a module would run its setup.
    return all(hasattr(type(value), name) for name in ("push", "rewound", "make_rng", "is_collection_empty"))


def scope_on(foreign: Any) -> Scope:
    """A scope of Sonde on the variables and random streams of a scope of `flax.core`."""
    run = Run(mutable=check(foreign.mutable))
    roots = foreign.root._variables
    for name in list(roots):
        if matches(run.mutable, name):
            roots[name] = unfreeze(roots[name])
    streams = {name: Stream(lazy.rng, tuple(lazy.suffix)) for name, lazy in foreign.rngs.items()}
    path = tuple(foreign.path)
    # The path of a root is only a label: its variables are at the top.
    return Scope(run, roots, path=path, tail=() if foreign.root is foreign else path, streams=streams)
