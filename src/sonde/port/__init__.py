"""What two programs that should do the same have in common: equations, values and weights, whatever their names.

`sonde.tools.compare` is the way in. The files here know nothing of sites: they look at the equations of a traced
program, at the noise of its arithmetic (`rounding`), and at what arrays have in common (`layouts`, `prints`).
"""
