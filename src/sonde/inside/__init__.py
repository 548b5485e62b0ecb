"""Code that was not written for Sonde: every local variable of every Python function as a site.

`inside=` of `sonde.capture`, `sonde.edit`, `sonde.sites` and of all tools comes here. How it works, in the order in
which to read it: `finding` turns what was asked for into functions in files; `syntax` gives every function of a file a
second body with marks, and `source` compiles it; `swapping` puts that code in the place of the function's own while a
capture runs; `marks` is what the marked body calls, and `values` how a value becomes a site; `asked` keeps what the
nested captures of a thread want.
"""

from sonde.inside.finding import LeftOut
from sonde.inside.request import Inside, request_of

__all__ = ["Inside", "LeftOut", "request_of"]
