"""Names and import paths that only packages written on Flax ask for."""
