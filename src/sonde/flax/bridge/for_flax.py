"""`ToNNX` and `ToLinen` as modules of Flax: for modules of Sonde inside modules of Flax.

Flax must be installed; importing this file imports it. `flax.nnx.bridge.ToNNX` takes linen modules of Sonde as well;
the classes here take nnx Modules of Sonde too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flax.core import FrozenDict

from flax import linen, nnx
from sonde.flax.bridge.libraries import FLAX
from sonde.flax.bridge.to_linen import HostOfNnx, method_of
from sonde.flax.bridge.to_nnx import HostOfLinen, Seeds, lazy_init
from sonde.flax.bridge.variables import to_linen_var
from sonde.linen.variables.filters import Filter


class ToNNX(HostOfLinen, nnx.Module):
    """A module of Sonde, of linen or nnx, as an nnx Module of Flax; see `sonde.flax.bridge.ToNNX`."""

    _library = FLAX

    def __init__(self, module: Any, rngs: Any = None):
        self._hold(module, rngs)

    def __call__(
        self,
        *args: Any,
        rngs: Seeds = None,
        method: Callable[..., Any] | str | None = None,
        mutable: Filter | None = None,
        **kwargs: Any,
    ) -> Any:
        """Calls the module inside; see `sonde.flax.bridge.ToNNX`."""
        return self._run(rngs, method, mutable, args, kwargs)

    def lazy_init(self, *args: Any, **kwargs: Any) -> ToNNX:
        """The same as `sonde.flax.bridge.lazy_init(self, *args, **kwargs)`."""
        return lazy_init(self, *args, **kwargs)


class ToLinen(HostOfNnx, linen.Module):
    """An nnx Module or a linen module of Sonde, as a linen module of Flax; see `sonde.flax.bridge.ToLinen`."""

    nnx_class: Any
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = FrozenDict({})
    skip_rng: bool = False
    metadata_fn: Callable[[Any], Any] | None = to_linen_var

    @linen.compact
    def __call__(self, *args: Any, nnx_method: Callable[..., Any] | str | None = None, **kwargs: Any) -> Any:
        """Calls the module inside; see `sonde.flax.bridge.ToLinen`."""
        return self._run(args, nnx_method, kwargs)

    def __getattr__(self, name: str) -> Any:
        return method_of(self, name) or super().__getattr__(name)


def to_linen(
    nnx_class: Callable[..., Any],
    *args: Any,
    metadata_fn: Callable[[Any], Any] | None = to_linen_var,
    name: str | None = None,
    skip_rng: bool = False,
    **kwargs: Any,
) -> ToLinen:
    """A linen module of Flax from a class of nnx Modules of Sonde and its arguments."""
    return ToLinen(
        nnx_class, args=args, kwargs=FrozenDict(kwargs), metadata_fn=metadata_fn, skip_rng=skip_rng, name=name
    )
