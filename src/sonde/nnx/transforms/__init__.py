"""Transforms of JAX for functions of Modules, Variables and other objects; see `_lifting` for how they work."""
