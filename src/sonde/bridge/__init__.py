"""Modules of linen and nnx inside each other, of Sonde and of Flax. Also `sonde.nnx.bridge`.

`ToNNX` puts a linen module into an nnx Module, `ToLinen` the other way round. `Module` is a module of both kinds.
`for_flax` has the same for modules of Flax: a module of Sonde inside one of Flax.
"""

from sonde.bridge.functional import Functional, functional
from sonde.bridge.to_linen import ToLinen, to_linen, to_linen_class
from sonde.bridge.to_nnx import ToNNX, lazy_init
from sonde.bridge.variables import NNXMeta, with_partitioning
from sonde.ops import named_initializers as initializers

__all__ = [
    "Functional",
    "NNXMeta",
    "ToLinen",
    "ToNNX",
    "functional",
    "initializers",
    "lazy_init",
    "to_linen",
    "to_linen_class",
    "with_partitioning",
]
