"""Layers: each holds parameters and makes one call of `sonde.ops`."""
