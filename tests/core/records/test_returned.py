"""Records as the output of jitted and of exported functions."""

import jax
import jax.numpy as jnp
import numpy as np

from sonde import capture, sow
from sonde.core.records.returned import AsStored

X = jnp.arange(3.0)


def test_the_structure_of_stored_records_is_that_of_the_program_whatever_the_leaves_are():
    _, found = capture(lambda x: sow(sow(x + 1, "a"), "b"))(X)
    leaves, tree = jax.tree.flatten(AsStored.of(found))
    assert len(leaves) == 1  # one array with two names
    same = jax.tree.unflatten(tree, [0] * len(leaves))
    assert jax.tree.structure(same) == tree
    assert jax.tree.leaves(AsStored.of(found).records) == jax.tree.leaves(found)
    _, two = capture(lambda x: (sow(x + 1, "a"), sow(x + 2, "b")))(X)
    tree = jax.tree.structure(AsStored.of(two))
    assert jax.tree.structure(jax.tree.unflatten(tree, [0, 0])) == tree


def test_an_exported_function_returns_records_and_jitted_ones():
    def f(x):
        return sow(sow(x * 2, "a"), "b") + 1

    for captured, x in ((capture(f), X), (lambda x: capture(jax.jit(f))(x), X)):
        exported = jax.export.export(jax.jit(captured))(x)
        result, records = jax.export.deserialize(exported.serialize()).call(x)
        np.testing.assert_array_equal(result, X * 2 + 1)
        assert list(records) == ["a", "b"]
        np.testing.assert_array_equal(records["b"].value, X * 2)
