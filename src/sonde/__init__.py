"""See inside any JAX program: every intermediate value and every gradient, under every transform, in one pass."""

from sonde.core import Axis, Record, Records, Site, capture, perturb, scope, sow

__all__ = ["Axis", "Record", "Records", "Site", "capture", "perturb", "scope", "sow"]
