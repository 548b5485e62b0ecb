"""The helper and the types that Flax's files have under these names."""

import flax.nnx.graph
import flax.nnx.helpers
import flax.nnx.module
import jax.numpy as jnp
import pytest

from sonde import nnx
from sonde.nnx.flax_names import helper_names as path_names
from sonde.nnx.flax_names.helper_names import Key, PathParts, first_from


@pytest.mark.parametrize("values", [(None, 0, 2), (False,), (None, None, ""), ([], 1), (None,), ()])
def test_the_first_that_is_not_none_as_in_flax(values):
    """Zero, False and empty containers count as values."""

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
    ((path, _),) = nnx.to_flat_state(nnx.State({"a": {0: 1}}))
    assert isinstance(path, PathParts.__origin__)
    assert all(isinstance(key, Key) for key in path)


@pytest.mark.parametrize("name", ["is_node", "is_graph_node", "is_pytree_node", "is_node_leaf"])
def test_kinds_of_values_as_in_flax(name):
    def answers(nnx, module):
        model = nnx.Dict(w=nnx.Param(1.0))
        values = (model, model.w, [1], {}, jnp.ones(1), 1, nnx.List([]), nnx.state(model), None, "a")
        return [bool(getattr(module, name)(value)) for value in values]

    assert answers(nnx, path_names) == answers(flax.nnx, flax.nnx.graph)


def test_small_helpers_as_in_flax():
    for f in (lambda x, *, a: 1, lambda x, **a: 1, lambda a: 1, lambda a, /: 1):
        assert path_names.has_keyword_arg(f, "a") == flax.nnx.helpers.has_keyword_arg(f, "a")
    assert path_names.tuple_reduce(path_names.tuple_init(), 2) == (2,)
