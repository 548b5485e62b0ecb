"""Random programs in ordinary Python, each as two texts: as anybody would write it, and with its marks written by hand.

All arrays have one shape, and all arithmetic works element by element, so that any value may be used anywhere. The form
by hand calls `S(value, name)` at a variable, `FN(name)` around the body of a function and `LAMBDA(name, names, f)`
around a lambda; `by_hand.py` says what these do, and what else a program uses.
"""

from tests.inside.programs.expressions import Texts
from tests.inside.programs.writer import Writer

__all__ = ["Texts", "Writer"]
