"""See inside any JAX program: every intermediate value and every gradient, under every transform, in one pass.

`sow` marks a value; `capture` runs a function and returns the marked values. The other names:

    scope(name)                     names for the sites inside a block
    capture(f, *patterns)           run `f`, return `(result, records)`
    edit(f, {pattern: new})         run `f` with values replaced
    perturb, perturbations, perturbed   add to values, and differentiate with respect to the additions
    records_before(error)           the records of a capture up to the point where `f` failed
    sites(f)                        the sites that a capture would record and their cost, without running `f`
    first_nonfinite(f)              finds the operation that makes the first NaN or Inf
    alias(), alias_report()         packages written for Flax run on Sonde; what they asked of Flax
"""

import importlib
from typing import TYPE_CHECKING, Any

from sonde import errors
from sonde._version import __version__

if TYPE_CHECKING:
    from sonde import bridge as bridge
    from sonde import dictionaries as dictionaries
    from sonde import linen as linen
    from sonde import models as models
    from sonde import nnx as nnx
    from sonde import report as report
    from sonde import serialization as serialization
    from sonde import store as store
    from sonde import struct as struct
    from sonde import tools as tools
    from sonde import training as training
    from sonde import traverse_util as traverse_util
    from sonde.aliasing import alias, alias_report
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
    "alias_report",
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

# Loaded when first used. The engine, too: the help and the completion of the command line do without JAX.
_ELSEWHERE = {
    "Inside": "sonde.inside",
    "NonFinite": "sonde.tools.nonfinite",
    "alias": "sonde.aliasing",
    "alias_report": "sonde.aliasing",
    "first_nonfinite": "sonde.tools.nonfinite",
}
_MODULES = frozenset(
    (
        "bridge",
        "core",
        "dictionaries",
        "inside",
        "linen",
        "models",
        "nnx",
        "report",
        "serialization",
        "store",
        "struct",
        "tools",
        "training",
        "traverse_util",
    )
)


if not TYPE_CHECKING:  # a type checker then sees a misspelled name

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return importlib.import_module(f"sonde.{name}")  # which puts it among the globals
        if name not in __all__:
            raise AttributeError(f"module 'sonde' has no attribute {name!r}")
        value = getattr(importlib.import_module(_ELSEWHERE.get(name, "sonde.core")), name)
        globals()[name] = value  # `sonde.sow` in a program is then looked up like any name
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
