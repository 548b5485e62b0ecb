import jax
import jax.numpy as jnp
import pytest

from sonde import errors, nnx

STREAMS = {
    "seed": lambda nnx: nnx.Rngs(0),
    "seeds": lambda nnx: nnx.Rngs(0, params=1, dropout=jax.random.key(3)),
    "mapping": lambda nnx: nnx.Rngs({"a": 1}, b=2),
    "nothing": lambda nnx: nnx.Rngs(),
    "old key": lambda nnx: nnx.Rngs(jax.random.PRNGKey(0)),
    "stream": lambda nnx: nnx.Rngs(nnx.Rngs(5).default),
    "other kind of key": lambda nnx: nnx.Rngs(jax.random.key(0, impl="rbg")),
    "text": lambda nnx: nnx.Rngs("x"),
    "floats": lambda nnx: nnx.Rngs(jnp.ones(3)),
    "rngs": lambda nnx: nnx.Rngs(nnx.Rngs(0)),
}


@pytest.mark.parametrize("name", STREAMS)
def test_making(same, name):
    same(lambda nnx: (nnx.state(STREAMS[name](nnx)), list(STREAMS[name](nnx)), len(STREAMS[name](nnx))))


def test_keys(same):
    def use(nnx):
        r = nnx.Rngs(0, params=1)
        return r(), r.params(), r["params"](), r.other(), r(), "other" in r, "params" in r, nnx.state(r)

    same(use)
    same(lambda nnx: nnx.Rngs(params=0).foo())
    same(lambda nnx: nnx.Rngs(params=0)["foo"])
    same(lambda nnx: nnx.Rngs(params=0)())


def test_unknown_stream_says_what_there_is():
    with pytest.raises(AttributeError, match=r"Rngs has no stream 'foo' and no default, only \['params'\]"):
        nnx.Rngs(params=0).foo()


DRAWS = {
    "normal": lambda r: r.normal((2, 3)),
    "uniform": lambda r: r.params.uniform((2,), minval=1.0, maxval=2.0),
    "randint": lambda r: r.randint((2,), 0, 5),
    "bernoulli": lambda r: r.bernoulli(0.5, (4,)),
    "permutation": lambda r: r.permutation(5),
    "choice": lambda r: r.choice(jnp.arange(4), (3,)),
    "truncated_normal": lambda r: r.truncated_normal(-1, 1, (2,)),
    "lecun_normal": lambda r: r.lecun_normal()((2, 2)),
    "variance_scaling": lambda r: r.params.variance_scaling(1.0, "fan_in", "normal")((2, 2), jnp.float32),
    "xavier_uniform": lambda r: r.xavier_uniform()((2, 2), jnp.bfloat16),
}


@pytest.mark.parametrize("name", DRAWS)
def test_drawing(same, name):
    same(lambda nnx: [DRAWS[name](r) for r in [nnx.Rngs(0, params=1)] * 2])


def test_the_same_methods_as_flax():
    from flax import nnx as flax

    inherited = set(dir(flax.Pytree)) | {"as_hashable"}
    for name in ("Rngs", "RngStream"):
        missing = {n for n in dir(getattr(flax, name)) if not n.startswith("_")} - inherited
        assert missing <= set(dir(getattr(nnx, name)))


DERIVED = {
    "fork": lambda r: r.fork(),
    "fork split": lambda r: r.fork(split=3),
    "fork split some": lambda r: r.fork(split={"params": 3}),
    "split": lambda r: r.split(2),
    "split tuple": lambda r: r.split((2, 3)),
    "split some": lambda r: r.split({"params": 2, ...: 3}),
    "broadcast": lambda r: r.broadcast(2),
    "broadcast some": lambda r: r.broadcast({"params": 2}),
    "stream fork": lambda r: r.params.fork(),
    "stream split": lambda r: r.params.split(2),
    "stream broadcast": lambda r: r.params.broadcast((2,)),
}


@pytest.mark.parametrize("name", DERIVED)
def test_deriving(same, name):
    def use(nnx):
        r = nnx.Rngs(0, params=1)
        return nnx.state(DERIVED[name](r)), nnx.state(r)

    same(use)


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


def test_asking_from_another_trace_level():
    r = nnx.Rngs(0)
    with pytest.raises(errors.TraceContextError):
        jax.jit(lambda: r())()
    assert jax.jit(lambda: jax.random.key_data(nnx.Rngs(0)()))().shape == (2,)
    assert r.default.count == 0
