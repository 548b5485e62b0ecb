"""`nnx.jit`, a place of its own, because calling a jitted function must cost what `jax.jit` costs.

What happens in a call: `compiled` (the function that users call) recognises the call that was made before, or sorts the
arguments (`arguments`), finds the plan for these objects (`memory`) and the program for their structure (`program`).
The program is a `jax.jit` of the lifting that all transforms share; the plan does to the objects what its outcome says.
"""

from sonde.nnx.transforms.jit.compiled import cached_partial, jit, jit_partial

__all__ = ["cached_partial", "jit", "jit_partial"]
