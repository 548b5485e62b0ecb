"""How sites get out of the primitives that contain programs: one rule for each, the same for every handler.

A rule takes the trace, the arguments and the parameters of a primitive that has sites inside. It runs under the trace
around, binds a rewritten primitive there, gives the extra outputs to the handler, and returns the outputs of the
program.
"""

from sonde.core.interpret.rules import cond, custom, inlined, jit, linear_solve, remat, scan, shard_map, while_loop  # noqa: F401
