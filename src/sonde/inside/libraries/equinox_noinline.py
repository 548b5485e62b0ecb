"""Functions under `equinox.internal.noinline`, which a compiled program calls on the host.

While a capture runs they are called directly, which computes the same. If the function is chosen only when the program
runs, a site in it is an error. Functions that `inside=` reaches through a package are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import jax

from sonde import _jax
from sonde.core import capture_state, first_site, split_arrays
from sonde.errors import CaptureError


def changes(noinline: ModuleType) -> Sequence[_jax.Change]:
    """Makes this module of Equinox call functions directly that it would keep out of line."""
    wrapper = noinline._NoInlineWrapper
    plain = wrapper.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        state = capture_state()
        if state is None or not (state.inside is None or state.inside.names_functions() or state.inside.names_models()):
            return plain(self, *args, **kwargs)
        if isinstance(self.dynamic_index, _jax.Tracer):
            _check_no_sites(self, args, kwargs)
            return plain(self, *args, **kwargs)
        function = noinline._index_to_fn[int(self.dynamic_index)]
        return noinline.hashable_combine(self.dynamic_fn, function)(*args, **kwargs)

    return [_jax.Change(wrapper, "__call__", call)]


def _check_no_sites(wrapper: Any, args: Any, kwargs: Any) -> None:
    arrays, rest = split_arrays((wrapper.dynamic_fn, args, kwargs), lambda x: isinstance(x, jax.Array))

    def run(*given: Any) -> list[Any]:
        function, args, kwargs = rest.whole(given)
        out = wrapper.abstract_fn(function, *args, **kwargs)
        return [x for x in jax.tree.leaves(out) if isinstance(x, jax.Array)]

    jaxpr, _ = _jax.trace_to_jaxpr(run, [*map(_jax.typeof, arrays)])
    if (site := first_site(jaxpr)) is not None:
        raise CaptureError(
            f"site {site.path!r} ({site.line}) cannot be captured: it is in a function under "
            "equinox.internal.noinline that is an argument of a compiled program, which calls it on the host. Call "
            "the function directly"
        )
