"""What follows Flax's small modules: the alias, `struct`, `serialization`, `traverse_util`, `training` and the bridge.

`sonde.nnx` and `sonde.linen` are the two large ones. Nothing here is needed to look inside a program.
"""
