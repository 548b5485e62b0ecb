"""Layers: parameters and random keys bound to the arithmetic in `sonde.ops`. One file per family."""
