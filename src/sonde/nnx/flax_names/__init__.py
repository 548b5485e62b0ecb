"""The paths, helpers and old functions of `flax.nnx`, for code that imports them by name."""
