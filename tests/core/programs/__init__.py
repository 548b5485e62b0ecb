"""Random programs, each in two forms: one marks its values with `sonde.sow`, one returns them by hand in plain JAX."""

from tests.core.programs.choices import Cond
from tests.core.programs.derivatives import CustomJvp, CustomVjp, Grad, Jvp, Pullbacks, Remat
from tests.core.programs.drawing import Drawing
from tests.core.programs.loops import Loop, While
from tests.core.programs.maps import Grid, Shard, Sides, Vmap
from tests.core.programs.models import Model
from tests.core.programs.nodes import Body, Call, Dead, Instead, Jit, Node, Op, Outer, Scope, Sow, SowTwice
from tests.core.programs.records import Rec
from tests.core.programs.whole import Program, loss_of

__all__ = [
    "Body",
    "Call",
    "Cond",
    "CustomJvp",
    "CustomVjp",
    "Dead",
    "Drawing",
    "Grad",
    "Grid",
    "Instead",
    "Jit",
    "Jvp",
    "Loop",
    "Model",
    "Node",
    "Op",
    "Outer",
    "Program",
    "Pullbacks",
    "Rec",
    "Remat",
    "Scope",
    "Shard",
    "Sides",
    "Sow",
    "SowTwice",
    "Vmap",
    "While",
    "loss_of",
]
