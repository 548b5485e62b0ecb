"""Transforms as decorators with options; `also_decorator` in `nnx/transforms/options.py`."""

import inspect

import jax.numpy as jnp
import pytest

from flax import nnx as flax_nnx
from sonde import nnx

NAMES = ["jit", "grad", "value_and_grad", "vmap", "pmap", "scan", "remat", "shard_map", "custom_vjp", "make_jaxpr"]


@pytest.mark.parametrize("name", NAMES)
def test_arguments_are_those_of_flax(name):
    ours, theirs = (inspect.signature(getattr(module, name)).parameters for module in (nnx, flax_nnx))
    missing = set(theirs) - set(ours)
    assert not missing or any(p.kind is p.VAR_KEYWORD for p in ours.values())


def test_options_first_and_the_function_afterwards():
    @nnx.vmap(in_axes=(None, 0))
    def times(w, x):
        """Multiplies."""
        return w * x

    assert times.__name__ == "times" and times.__doc__ == "Multiplies."
    assert times(nnx.Param(jnp.array(2.0)), jnp.arange(3.0)).tolist() == [0, 2, 4]
    assert nnx.vmap(f=lambda x: x + 1)(jnp.arange(2)).tolist() == [1, 2], "the function by its name"


def test_the_mode_is_that_of_the_moment_the_options_were_given():
    w = nnx.Param(jnp.array(2.0))
    shared = nnx.Dict(a=w, b=w)
    with nnx.set_graph_mode(False):
        as_tree = nnx.jit()
    with pytest.raises(ValueError, match="Duplicate Param"):
        as_tree(lambda m: m.a * m.b)(shared)
    assert nnx.jit()(lambda m: m.a * m.b)(shared) == 4
