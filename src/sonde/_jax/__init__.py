"""The one door to JAX's internals. When JAX changes, only this package has to change.

`patches` holds every change made to JAX; `imported` holds what is used unchanged. Each other file is named after its
subject, holds what differs there between the JAX versions that Sonde supports (0.10 to 0.12), and lists the names that
it offers. Nothing here knows what a site is.
"""

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
