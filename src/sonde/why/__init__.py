"""Why is a result what it is: the walk back over the equations of a program.

`search` runs a function and explains the first result that is not finite. `Walk` is the mechanism: it goes from an
element of a result back to the operation that made it what it is, for any `Question` about numbers.
"""

from sonde.why.places import Place, place_of
from sonde.why.search import Answer, search
from sonde.why.walk import Birth, NotFinite, Question, Scene, Step, Walk

__all__ = [
    "Answer",
    "Birth",
    "NotFinite",
    "Place",
    "Question",
    "Scene",
    "Step",
    "Walk",
    "place_of",
    "search",
]
