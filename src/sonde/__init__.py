"""See inside any JAX program: every intermediate value and every gradient, under every transform, in one pass.

`sow` marks a value; `capture` runs a function and returns the marked values. The other names:

    scope(name)                     names for the sites inside a block
    capture(f, *patterns)           run `f`, return `(result, records)`
    edit(f, {pattern: new})         run `f` with values replaced
    perturb, perturbations, perturbed   add to values, and differentiate with respect to the additions
    records_before(error)           the records of a capture up to the point where `f` failed
    sites(f)                        the sites that a capture would record and their cost, without running `f`
    first_nonfinite(f)              finds the site that makes the first NaN or Inf
    alias()                         packages written for Flax run on Sonde
"""

import importlib
from typing import TYPE_CHECKING, Any

from sonde import errors
from sonde._version import __version__
from sonde.core import (
    Axis,
    CacheInfo,
    Edit,
    KeptPrograms,
    Record,
    Records,
    Site,
    SiteInfo,
    Sites,
    cache_clear,
    cache_info,
    capture,
    edit,
    perturb,
    perturbations,
    perturbed,
    records_before,
    scope,
    set_cache_bound,
    sites,
    sow,
)

if TYPE_CHECKING:
    from sonde import bridge as bridge
    from sonde import dictionaries as dictionaries
    from sonde import linen as linen
    from sonde import nnx as nnx
    from sonde import serialization as serialization
    from sonde import store as store
    from sonde import struct as struct
    from sonde import training as training
    from sonde import traverse_util as traverse_util
    from sonde.aliasing import alias
    from sonde.inside import Inside
    from sonde.tools.nonfinite import NonFinite, first_nonfinite

__all__ = [
    "Axis",
    "CacheInfo",
    "Edit",
    "Inside",
    "KeptPrograms",
    "NonFinite",
    "Record",
    "Records",
    "Site",
    "SiteInfo",
    "Sites",
    "__version__",
    "alias",
    "cache_clear",
    "cache_info",
    "capture",
    "edit",
    "errors",
    "first_nonfinite",
    "perturb",
    "perturbations",
    "perturbed",
    "records_before",
    "scope",
    "set_cache_bound",
    "sites",
    "sow",
]

# Loaded when first used: `import sonde` costs what JAX costs.
_LATER = {
    "Inside": "sonde.inside",
    "NonFinite": "sonde.tools.nonfinite",
    "alias": "sonde.aliasing",
    "bridge": "sonde.bridge",
    "first_nonfinite": "sonde.tools.nonfinite",
    "linen": "sonde.linen",
    "nnx": "sonde.nnx",
    "serialization": "sonde.serialization",
    "dictionaries": "sonde.dictionaries",
    "store": "sonde.store",
    "struct": "sonde.struct",
    "training": "sonde.training",
    "traverse_util": "sonde.traverse_util",
}


def __getattr__(name: str) -> Any:
    where = _LATER.get(name)
    if where is None:
        raise AttributeError(f"module 'sonde' has no attribute {name!r}")
    module = importlib.import_module(where)
    return module if where.endswith(f".{name}") else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
