"""Tools for people who can see: one file, one tool, one verb. They work on functions and paths, on no module system."""

from sonde.tools.nonfinite import NonFinite, first_nonfinite

__all__ = ["NonFinite", "first_nonfinite"]
