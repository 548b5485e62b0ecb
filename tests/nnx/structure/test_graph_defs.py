"""The structure of a model: hashable, comparable, a pytree without leaves; and states that carry it."""

import jax
from tests.nnx.graphs import shared, tree

from sonde import nnx


def test_graphdef_is_hashable_and_a_static_pytree():
    a, b = nnx.graphdef(tree(nnx)), nnx.graphdef(tree(nnx))
    assert a == b and hash(a) == hash(b) and jax.tree.leaves(a) == []
    assert a != nnx.graphdef(shared(nnx))
    hash(nnx.graphdef(nnx.Dict(sizes=[1, 2])))  # a static list does not get in the way
    assert nnx.graphdef(nnx.Dict(n=1)) != nnx.graphdef(nnx.Dict(n=2))
    assert a.type is nnx.Dict and a.num_leaves == 8

    @jax.jit
    def f(graphdef, state):
        return nnx.merge(graphdef, state).w.sum()

    assert f(*nnx.split(tree(nnx))) == 2


def test_unpack(same):
    def use(nnx):
        params, rest = nnx.unpack(tree(nnx), nnx.Param, ...)
        return nnx.merge(params, rest), nnx.merge(nnx.unpack(tree(nnx))), list(params)

    same(use)


def test_entries_of_what_unpack_returns_have_the_paths_of_a_state(same):
    def use(nnx):
        state = nnx.unpack(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
        doubled = jax.tree.map(lambda x: 2 * x, state)
        return [str(path) for path, _ in jax.tree.leaves_with_path(state)], nnx.merge(doubled)

    same(use)
