"""Writing a store: harvests by one process or many, repair, merge."""
