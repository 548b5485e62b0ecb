"""Programs that were wrong once, as the random search printed them."""

import numpy as np
import pytest
from tests.core.programs import Call, Cond, Program, Remat, Shard, Sow, Vmap
from tests.core.test_random_programs import check_program

X = np.array([0.3, -0.8], np.float32)
CALLED_UNEQUALLY = Program(((Sow("s"),),), (Vmap((Cond(((), (Call(0),), (Call(0, 2),))),), 1, 1),))
GATE_VARIES = Program((), (Shard((Vmap((Cond(((), (Remat((Sow("s"),)),))),), 0, 0),)),))
SHARED_PATH = Program(((Sow("s"),),), (Shard((Vmap((Cond(((Call(0),), (Call(0),))),), 1, 0),)),))


@pytest.mark.parametrize(("program", "look"), [(CALLED_UNEQUALLY, 6), (GATE_VARIES, 4), (SHARED_PATH, 7)])
def test_once_wrong(program, look):
    check_program(program, look, X)
