"""The names that `sonde.linen` exports, and those of flax.linen that it leaves out."""

import types

import flax.errors
import flax.linen as flax_nn

from sonde import errors
from sonde import linen as nn

# Of checkpoints, cursors and traversals, which are not part of the library; or never raised by flax itself any more.
ERRORS_LEFT_OUT = {
    "AlreadyExistsError",
    "CursorFindError",
    "FlaxError",
    "ImmutableVariableError",
    "InvalidCheckpointError",
    "MPACheckpointingRequiredError",
    "MPARestoreDataCorruptedError",
    "MPARestoreTargetRequiredError",
    "MultipleMethodsCompactError",
    "TraceContextError",
    "TraverseTreeError",
}


def test_all_names_of_flax_are_there():
    names = {n for n in dir(flax_nn) if not n.startswith("_") and not isinstance(getattr(flax_nn, n), types.ModuleType)}
    assert not {name for name in names if not hasattr(nn, name)}


def test_all_is_complete():
    assert len(set(nn.__all__)) == len(nn.__all__)
    assert all(hasattr(nn, name) for name in nn.__all__)


def test_errors_have_the_names_of_flax():
    names = {n for n in dir(flax.errors) if n[0].isupper()}
    missing = {name for name in names if not hasattr(errors, name)}
    assert missing <= ERRORS_LEFT_OUT
    for name in names - ERRORS_LEFT_OUT:
        assert issubclass(getattr(errors, name), errors.SondeError), name
