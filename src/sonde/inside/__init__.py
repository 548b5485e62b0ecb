"""Code that was not written for Sonde: every local variable of every Python function as a site.

`sonde.capture`, `sonde.edit`, `sonde.sites` and all tools take `inside=`, which is implemented here. The files, in
reading order: `wrapping` and `finding` turn the argument into functions in files; `syntax` gives every function of a
file a second body with marks, and `source` compiles it; `swapping` replaces the function's own code by that while a
capture runs, and `heap` finds the function objects; the marked body calls `marks`, and `values` turns a value into a
site; `asked` keeps the requests of the nested captures of a thread.
"""
