"""The helper and the types that Flax's files have under these names."""

import flax.nnx.module
import pytest

from sonde.nnx.path_names import Key, PathParts, first_from


@pytest.mark.parametrize("values", [(None, 0, 2), (False,), (None, None, ""), ([], 1), (None,), ()])
def test_the_first_that_is_not_none_as_in_flax(values):
    """Zero, False and what is empty are values."""

    def outcome(f):
        try:
            return f(*values, error_msg="nothing was given")
        except ValueError as error:
            return str(error)

    assert outcome(first_from) == outcome(flax.nnx.module.first_from)


def test_what_was_given_is_returned_and_not_a_copy():
    value = object()
    assert first_from(None, value, error_msg="") is value


def test_keys_and_paths_are_those_of_states():
    from sonde import nnx

    ((path, _),) = nnx.to_flat_state(nnx.State({"a": {0: 1}}))
    assert isinstance(path, PathParts.__origin__)
    assert all(isinstance(key, Key) for key in path)
