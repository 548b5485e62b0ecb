import jax.numpy as jnp

from sonde import nnx


def test_a_jitted_function_writes_where_the_variable_reads():
    v = nnx.Variable(jnp.array(1))
    cell = v._cell

    @nnx.jit
    def double(v):
        v[...] *= 2

    for _ in range(3):
        double(v)
    assert v._cell is cell and int(cell.value) == int(v) == 8


def test_copies_have_cells_of_their_own():
    v = nnx.Variable(jnp.array(1))
    for copy in (v.copy(), nnx.clone(v)):
        assert copy._cell is not v._cell
        copy[...] = jnp.array(5)
        assert int(v) == 1
