"""Modules: the class, how modules get parents and names, how their methods run, and what shows them."""
