"""Modules of linen and nnx inside each other, of Sonde and of Flax. Also `sonde.nnx.bridge`.

`ToNNX` puts a linen module into an nnx Module, `ToLinen` an nnx Module into a linen module. `Module` is a module of
both kinds. `for_flax` has the same classes for a module of Sonde inside one of Flax.
"""

from sonde.flax.bridge.context import Scope, current_context, current_module
from sonde.flax.bridge.functional import Functional, functional
from sonde.flax.bridge.interop import linen_in_bridge_mdl, nnx_in_bridge_mdl
from sonde.flax.bridge.module import AttrPriority, Module, compact
from sonde.flax.bridge.to_linen import ToLinen, to_linen, to_linen_class
from sonde.flax.bridge.to_nnx import ToNNX, lazy_init
from sonde.flax.bridge.variables import NNXMeta, with_partitioning
from sonde.ops import initializers as initializers

__all__ = [
    "AttrPriority",
    "Functional",
    "Module",
    "NNXMeta",
    "Scope",
    "ToLinen",
    "ToNNX",
    "compact",
    "current_context",
    "current_module",
    "functional",
    "initializers",
    "lazy_init",
    "linen_in_bridge_mdl",
    "nnx_in_bridge_mdl",
    "to_linen",
    "to_linen_class",
    "with_partitioning",
]
