"""See inside any JAX program: every intermediate value and every gradient, under every transform, in one pass.

`sow` marks a value; `capture` runs a function and returns the marked values. The other names:

    scope(name)                     names for the sites inside a block
    capture(f, *patterns)           run `f`, return `(result, records)`
    edit(f, {pattern: new})         run `f` with values replaced
    perturb(x, name)                mark a value that something can be added to
    with_perturbations(f)           `f` with arrays added at sites, to differentiate with respect to them
    zero_perturbations(f)           zeros for these arrays, without running `f`
    partial_records(error)          the records of a capture up to the point where `f` failed
    sites(f)                        the sites that a capture would record and their cost, without running `f`
    first_nonfinite(f)              finds the operation that makes the first NaN or Inf
    view(f, *args)                  a page on a running program, in the browser
    alias(), alias_report()         packages written for Flax run on Sonde; what they asked of Flax
"""

import importlib

from sonde._import_paths import forward_moved_modules
from sonde._lazy_names import lazy_names
from sonde._renames import MODULES

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)

forward_moved_modules(MODULES)


def load_ipython_extension(shell: object) -> None:
    """Called by `%load_ext sonde`: adds the magic `%%sonde`."""
    # By name: the command line stands on this package.
    importlib.import_module("sonde.cli.notebook").load(shell)
