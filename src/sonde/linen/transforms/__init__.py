"""Lifted transforms: JAX's transforms on functions that have variables and random streams. One file per family."""
