"""Has the garbage collector skip the objects that there are, so that it only visits those of the tests that run now.

JAX keeps what it traced and compiled, so a process that has run two thousand tests has millions of objects. A full
collection then takes two seconds, and so does `jax.checking_leaks`, which searches for the referrers of a trace. Never
`gc.unfreeze`: it would bring all of them back.
"""

from __future__ import annotations

import gc
from types import FunctionType

ENOUGH = 50_000  # with fewer new objects than this, freezing does not pay


def freeze() -> None:
    """Freezes all objects that can be reached, and collects the others.

    `inside=` would have to search the frozen objects for functions, for seconds in every process; so it is told.
    """
    from sonde.inside.heap import HEAP as heap

    gc.collect()  # `inside=` hears of this, and lists the functions that it needs of the new ones
    objects = gc.get_objects()
    heap.add_frozen(x for x in objects if type(x) is FunctionType)
    # At most so many are frozen then. To count millions of them takes 0.2 s, so it is done once, when there are few.
    heap._n_frozen = (heap._n_frozen or gc.get_freeze_count()) + len(objects) + 1000
    heap._may_have_frozen = False
    del objects
    gc.freeze()
    heap._young = lambda: None


def freeze_if_many() -> None:
    """Freezes the objects if many were made since the last time."""
    if len(gc.get_objects()) > ENOUGH:
        freeze()
