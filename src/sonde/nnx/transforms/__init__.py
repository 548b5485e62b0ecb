"""Transforms of JAX for functions of Modules, Variables and other objects; see `lifting` for how they work."""
