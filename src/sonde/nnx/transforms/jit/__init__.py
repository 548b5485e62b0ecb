"""`nnx.jit`, a separate package, because calling a jitted function must cost no more than with `jax.jit`.

In a call, `compiled` (the function that users call) recognizes the previous call, or sorts the arguments (`arguments`),
finds the plan for these objects (`memory`) and the program for their structure (`program`). The program is a `jax.jit`
of the lifting that all transforms share; the plan applies its outcome to the objects.
"""

from sonde.nnx.transforms.jit.compiled import cached_partial, jit, jit_partial

__all__ = ["cached_partial", "jit", "jit_partial"]
