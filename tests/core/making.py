"""Sites and items made by hand, for tests of the parts of the engine that need no program."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from sonde.core.interpret.items import Item
from sonde.core.marks.site import PLAIN, Site, View, take_apart


def site_of(value: Any, path: str = "h", **options: Any) -> Site:
    """A site at which a value is sown, on line 7 of this file."""
    _, tree, arrays, statics = take_apart(value)
    options = {"tag": None, "grads": False, "code": site_of.__code__, "line": 7, **options}
    return Site.new(path, tree=tree, arrays=arrays, statics=statics, **options)


def item_of(
    site: Site, *leaves: Any, path: str | None = None, view: View = PLAIN, loops: tuple[object, ...] = (), **extras: Any
) -> Item:
    """One recorded value of a site."""
    types = tuple(jax.ShapeDtypeStruct(np.shape(x), np.asarray(x).dtype) for x in leaves)
    return Item((site,), site.path if path is None else path, view, list(leaves), extras, None, types, loops)
