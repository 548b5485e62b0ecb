"""The one door to JAX's internals. When JAX changes, only this package has to change.

`patches` holds every change made to JAX; `imported` holds what is used unchanged. Each other file is named after its
subject, holds what differs there between the JAX versions that Sonde supports (0.10 to 0.12), and lists the names that
it offers. Nothing here knows what a site is.
"""

from sonde._jax import (
    arguments,
    array_types,
    custom_derivatives,
    effects,
    imported,
    in_place,
    jaxprs,
    meshes,
    operations,
    parameters,
    patches,
    primitives,
    references,
    scope_names,
    tracers,
    traces,
    upgraded,
    vmaps,
)
from sonde._jax.arguments import *
from sonde._jax.array_types import *
from sonde._jax.custom_derivatives import *
from sonde._jax.effects import *
from sonde._jax.imported import *
from sonde._jax.in_place import *
from sonde._jax.jaxprs import *
from sonde._jax.meshes import *
from sonde._jax.operations import *
from sonde._jax.parameters import *
from sonde._jax.patches import *
from sonde._jax.primitives import *
from sonde._jax.references import *
from sonde._jax.scope_names import *
from sonde._jax.tracers import *
from sonde._jax.traces import *
from sonde._jax.upgraded import *
from sonde._jax.vmaps import *

__all__ = []
__all__ += arguments.__all__
__all__ += array_types.__all__
__all__ += custom_derivatives.__all__
__all__ += effects.__all__
__all__ += imported.__all__
__all__ += in_place.__all__
__all__ += jaxprs.__all__
__all__ += vmaps.__all__
__all__ += meshes.__all__
__all__ += operations.__all__
__all__ += scope_names.__all__
__all__ += parameters.__all__
__all__ += patches.__all__
__all__ += primitives.__all__
__all__ += references.__all__
__all__ += tracers.__all__
__all__ += traces.__all__
__all__ += upgraded.__all__
