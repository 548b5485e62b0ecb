"""Layers: parameters, and one call of `sonde.ops` each."""
