"""Modules of any library: found by identity, by what they are copies of, or by their arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.core.frozen import Frozen, Layer, X, call, check, make

import sonde

jitted, remat = jax.jit(call), jax.checkpoint(call)


def parted(module, x):
    """As libraries do that jit non-array arguments: the arrays are passed in, and the object is rebuilt inside."""
    leaves, tree = jax.tree.flatten(module)
    return inner(leaves, tree, x)


inner = jax.jit(lambda leaves, tree, x: jax.tree.unflatten(tree, leaves)(x), static_argnums=1)


@pytest.mark.parametrize("outer", [call, jitted, remat, parted, lambda m, x: jax.tree.map(lambda a: a, m)(x)])
@pytest.mark.parametrize("run", [call, jitted, lambda m, x: jax.jit(lambda x: m(x))(x)])
def test_paths(run, outer):
    model = make(run)
    for _ in range(2):
        check(sonde.capture(outer)(model, X)[1])
    check(sonde.capture(lambda x: outer(model, x))(X)[1])


def test_a_copy_is_found_by_its_class_if_it_is_the_only_one():
    @jax.tree_util.register_pytree_with_keys_class
    class One(Frozen):
        def forward(self, x):
            return lax.scan(lambda x, layer: (layer(x), None), x, self.layers)[0]

    _, records = sonde.capture(One(layers=Layer(w=jnp.array([1.0, 2.0]))))(X)
    assert list(records) == ["layers/y"]
    np.testing.assert_allclose(records["layers/y"].value, [jnp.sin(X), jnp.sin(2 * jnp.sin(X))], rtol=1e-6)


def test_copies_by_their_arrays():
    model = make(lambda m, x: jax.tree.map(lambda a: a, m)(x))
    check(sonde.capture(model)(X)[1])
    check(sonde.capture(jitted)(model, X)[1])
