"""Other libraries: `changes` is what must be changed in them while a capture runs, `registry` finds their models.

How the modules of a library are observed is in a file of its own, which is loaded when the program has imported the
library and looks into one of its models.
"""
