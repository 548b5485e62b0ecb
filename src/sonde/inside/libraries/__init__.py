"""Modules of other libraries, one file each. None is imported before the program has imported it."""
