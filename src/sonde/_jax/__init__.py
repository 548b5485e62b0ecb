"""The one door to JAX's inside. A change in JAX is a change in this package alone.

`inner` has the imports and what differs between versions; `patches` every change that is made to JAX; `arguments` what
the arguments of a program that is traced stand for. Each lists the names that it offers.
"""

from sonde._jax import arguments, inner, patches
from sonde._jax.arguments import *
from sonde._jax.inner import *
from sonde._jax.patches import *

__all__ = []
__all__ += arguments.__all__
__all__ += inner.__all__
__all__ += patches.__all__
