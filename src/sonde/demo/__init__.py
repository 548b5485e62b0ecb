"""The demo: a two-layer attention model learns induction, and Sonde finds the head that does it.

tell(seed)          trains, captures, patches, plants a defect and searches for it; returns a `Story`
report_of(story)    the page about it
show(story)         the same for a terminal

`sonde demo` and `make demo` run it.
"""

from sonde.demo.page import report_of
from sonde.demo.story import Story, tell
from sonde.demo.terminal import show

__all__ = ["Story", "report_of", "show", "tell"]
