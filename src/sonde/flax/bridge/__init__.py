"""Modules of linen and nnx inside each other, of Sonde and of Flax. Also `sonde.nnx.bridge`.

`ToNNX` puts a linen module into an nnx Module, `ToLinen` an nnx Module into a linen module. `Module` is a module of
both kinds. `for_flax` has the same classes for a module of Sonde inside one of Flax.
"""

from sonde.flax.bridge.context import Scope as Scope
from sonde.flax.bridge.context import current_context as current_context
from sonde.flax.bridge.context import current_module as current_module
from sonde.flax.bridge.functional import Functional as Functional
from sonde.flax.bridge.functional import functional as functional
from sonde.flax.bridge.interop import linen_in_bridge_mdl as linen_in_bridge_mdl
from sonde.flax.bridge.interop import nnx_in_bridge_mdl as nnx_in_bridge_mdl
from sonde.flax.bridge.module import AttrPriority as AttrPriority
from sonde.flax.bridge.module import Module as Module
from sonde.flax.bridge.module import compact as compact
from sonde.flax.bridge.to_linen import ToLinen as ToLinen
from sonde.flax.bridge.to_linen import to_linen as to_linen
from sonde.flax.bridge.to_linen import to_linen_class as to_linen_class
from sonde.flax.bridge.to_nnx import ToNNX as ToNNX
from sonde.flax.bridge.to_nnx import lazy_init as lazy_init
from sonde.flax.bridge.variables import NNXMeta as NNXMeta
from sonde.flax.bridge.variables import with_partitioning as with_partitioning
from sonde.ops import initializers as initializers
