"""The engine: sites, and everything that can be done at them.

`sow` and `scope` mark values; `capture`, `edit`, `perturbed` and `sites` run a program with a handler at its sites. The
layers above use `mark` (a site with something attached), `mark_in_place` (for a `sow` that returns nothing), `run_with`
(run a function with a handler) and the handlers themselves.

How it works, in the order in which to read it: `primitive` is the equation that a site is; `trace` is what a captured
function runs under; `rules` get sites out of loops, branches and jitted calls, with `rewrite` doing the common part;
`handler` is what happens at a site, with its kinds `collect`, `edit` and `perturbing`; `choices` merges branches that
all ran; `calls` pairs gradients with values; `record` is the result. `modules` finds the paths of modules.
"""

from sonde.core.axes import Axis
from sonde.core.capture import capture
from sonde.core.edit import Edit, edit
from sonde.core.failing import records_before
from sonde.core.inventory import SiteInfo, Sites, sites
from sonde.core.keeping import CacheInfo, KeptPrograms, cache_clear, cache_info, set_cache_bound
from sonde.core.perturbing import perturbations, perturbed
from sonde.core.record import Record, Records
from sonde.core.scopes import scope
from sonde.core.site import Site
from sonde.core.sow import mark, mark_in_place, perturb, sow

__all__ = [
    "Axis",
    "CacheInfo",
    "Edit",
    "KeptPrograms",
    "Record",
    "Records",
    "Site",
    "SiteInfo",
    "Sites",
    "cache_clear",
    "cache_info",
    "capture",
    "edit",
    "mark",
    "mark_in_place",
    "perturb",
    "perturbations",
    "perturbed",
    "records_before",
    "scope",
    "set_cache_bound",
    "sites",
    "sow",
]
