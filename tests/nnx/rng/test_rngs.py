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


def test_asking_from_another_trace_level():
    r = nnx.Rngs(0)
    with pytest.raises(errors.TraceContextError):
        jax.jit(lambda: r())()
    assert jax.jit(lambda: jax.random.key_data(nnx.Rngs(0)()))().shape == (2,)
    assert r.default.count == 0
