"""`cond` and `switch`: changes of the chosen branch reach the caller, and branches must agree."""

import jax.numpy as jnp
import numpy as np
import pytest
from tests.nnx.transforms.cells import Cell

from sonde import nnx


def test_branches_that_change_different_variables():
    model = nnx.Dict(a=nnx.Variable(jnp.array(0)), b=nnx.Variable(jnp.array(0)), c=nnx.Variable(jnp.array(0)))
    untouched = model.c[...]

    @nnx.jit
    def f(m, i):
        def set_a(m):
            m.a[...] = 10

        def set_b(m):
            m.b[...] = 20

        nnx.switch(i, [set_a, set_b, lambda m: None], m)

    for i in (2, 0, 1):
        f(model, i)
        assert (int(model.a), int(model.b)) == {2: (0, 0), 0: (10, 0), 1: (10, 20)}[i]
    assert model.c[...] is untouched


def test_branches_of_different_forms():
    with pytest.raises(TypeError) as info:
        nnx.cond(True, lambda: {"a": jnp.ones(2)}, lambda: 1.0)
    text = str(info.value)
    assert "nnx.cond: all branches must return the same form of output, but these differ" in text
    assert "true_fun returns {'a': 'float32[2]'}, false_fun returns" in text


def test_vmapped_branches():
    cells = Cell(3)
    f = nnx.vmap(lambda m, p: nnx.cond(p, lambda m: m(1.0), lambda m: m.w * 0, m))
    np.testing.assert_array_equal(f(cells, jnp.array([True, False, True])), [1, 0, 3])
    np.testing.assert_array_equal(cells.count[...], [1, 0, 1])


def test_variables_as_predicate_and_index():
    assert int(nnx.cond(nnx.Variable(jnp.array(True)), lambda: 1, lambda: 2)) == 1
    assert int(nnx.switch(nnx.Variable(jnp.array(1)), [lambda: 1, lambda: 2])) == 2
