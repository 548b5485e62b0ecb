"""Streams of keys inside models: split, forked, reseeded and restored."""

import jax
import pytest

from sonde import nnx


def holder(nnx):
    class Holder(nnx.Module):
        def __init__(self):
            self.rngs = nnx.Rngs(0, dropout=1)
            self.own = nnx.RngStream(3, tag="dropout")
            self.w = nnx.Param(1.0)

    return Holder()


COPIES = {
    "with_rngs": lambda nnx, m: nnx.with_rngs(m),
    "with_rngs split": lambda nnx, m: nnx.with_rngs(m, split=2),
    "with_rngs split some": lambda nnx, m: nnx.with_rngs(m, split={"dropout": 2}, fork="default"),
    "with_rngs fork": lambda nnx, m: nnx.with_rngs(m, fork=...),
    "with_rngs broadcast": lambda nnx, m: nnx.with_rngs(m, broadcast={"dropout": 3}),
    "with_rngs only": lambda nnx, m: nnx.with_rngs(m, split=2, only="default"),
    "split_rngs": lambda nnx, m: nnx.split_rngs(m, splits=2, graph_updates=False),
    "split_rngs only": lambda nnx, m: nnx.split_rngs(m, splits=2, only="dropout", graph_updates=False),
    "fork_rngs": lambda nnx, m: nnx.fork_rngs(m, graph_updates=False),
    "tree": lambda nnx, m: nnx.split_rngs(m, splits=2, graph=False),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_with_other_streams(same, name):
    def use(nnx):
        m = holder(nnx)
        with nnx.set_graph_updates(False):  # Flax has `with_rngs` only so
            other = COPIES[name](nnx, m)
        return nnx.state(m), nnx.state(other), other.w is m.w

    same(use)


IN_PLACE = {
    "split": lambda nnx, m: nnx.split_rngs(m, splits=2, graph=True, graph_updates=True),
    "split tuple": lambda nnx, m: nnx.split_rngs(m, splits=(2, 3), graph=True, graph_updates=True),
    "split some": lambda nnx, m: nnx.split_rngs(m, splits=2, only="dropout", graph=True, graph_updates=True),
    "split and squeeze": lambda nnx, m: nnx.split_rngs(m, splits=1, squeeze=True, graph=True, graph_updates=True),
    "squeeze what cannot be": lambda nnx, m: nnx.split_rngs(m, splits=2, squeeze=True, graph=True, graph_updates=True),
    "fork": lambda nnx, m: nnx.fork_rngs(m, graph=True, graph_updates=True),
    "fork and split": lambda nnx, m: nnx.fork_rngs(m, split={"dropout": 2}, graph=True, graph_updates=True),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_changing_streams_in_place_and_putting_them_back(same, name):
    def use(nnx):
        m = holder(nnx)
        backups = IN_PLACE[name](nnx, m)
        during = nnx.state(m, nnx.RngState)
        during = nnx.map_state(lambda path, v: v.copy(), during)
        nnx.restore_rngs(backups)
        return during, nnx.state(m)

    same(use)


def test_as_context_and_decorator():
    r = nnx.Rngs(0, dropout=1)
    with nnx.split_rngs(r, splits=3, only="dropout"):
        assert r.dropout.key.shape == (3,) and r.default.key.shape == ()
    assert r.dropout.key.shape == () and r.dropout.count == 1

    @nnx.split_rngs(splits=2)
    def shapes(rngs, *, model):
        return rngs.default.key.shape, model["rngs"].default.key.shape

    other = nnx.Dict(rngs=nnx.Rngs(0))
    assert shapes(r, model=other) == ((2,), (2,))
    assert r.default.key.shape == ()
    with pytest.raises(ZeroDivisionError), nnx.fork_rngs(r):
        raise ZeroDivisionError
    assert jax.random.key_data(r.default.key[...]).tolist() == [0, 0]

    @nnx.with_rngs(split=4)
    def copied(rngs):
        return rngs.default.key.shape

    assert copied(r) == (4,)


def test_a_split_stream_says_where_it_can_be_used():
    r = nnx.Rngs(0).split(2)
    with pytest.raises(ValueError, match=r"'default' holds \(2,\) keys.*nnx.vmap"):
        r()


def test_reseeding(same):
    def reseed(**options):
        def use(nnx):
            m = holder(nnx)
            m.own()
            nnx.reseed(m, **options)
            return nnx.state(m)

        return use

    same(reseed(dropout=5))
    same(reseed(dropout=5, default=jax.random.key(7)))
    same(reseed(nothing=5))

    def split_first(policy):
        def use(nnx):
            r = nnx.Rngs(0).split(2)
            nnx.reseed(r, default=7, policy=policy)
            return nnx.state(r)

        return use

    same(split_first("match_shape"))
    same(split_first("scalars_only"))
    same(split_first(lambda path, key, shape: jax.random.split(key, shape)))


def test_reseeding_that_fails_changes_nothing():
    m = nnx.Dict(a=nnx.Rngs(0), b=nnx.Rngs(1).split(2))
    before = jax.random.key_data(m.a.default.key[...]).tolist()
    with pytest.raises(ValueError, match="b/default: it holds an array of keys of shape"):
        nnx.reseed(m, default=7)
    assert jax.random.key_data(m.a.default.key[...]).tolist() == before
