"""What changed between releases of Flax: Sonde does as the release that is installed, the newest for this JAX."""

import warnings

import flax.linen
import flax.nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flax
from sonde import linen, nnx
from sonde.errors import LazyInitError
from sonde.flax import release as _flax_release
from sonde.flax.release import FOLLOWED, follows

Q = jnp.arange(24.0).reshape(1, 3, 2, 4) / 24
NEW = follows(0, 12, 12)


def test_the_installed_flax_is_the_followed_one():
    """If this fails, a new release of Flax is out: look at what it changed, then raise `FOLLOWED`."""
    assert flax.__version__ == ".".join(map(str, FOLLOWED))


def both(program):
    """The results of a program with both libraries; an exception is a result, too."""
    results = []
    for nn, library in ((linen, nnx), (flax.linen, flax.nnx)):
        try:
            results.append(program(library, nn))
        except Exception as error:
            results.append(next(c.__name__ for c in (ValueError, TypeError, Exception) if isinstance(error, c)))
    return results


def same(program):
    ours, theirs = both(program)
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    return ours


SEQUENTIALS = {
    "for two layers": lambda s: s(lambda x, k=1.0: x * k, lambda x, *, k=1.0: x * k, lambda x: x)(3.0, k=2.0),
    "a keyword that the first layer has not": lambda s: s(lambda x: x)(3.0, other=2.0),
    "a dict that repeats a keyword": lambda s: s(lambda x: {"a": x, "b": 2.0}, lambda a, b: a * b)(3.0, a=2.0),
    "a dict and another keyword": lambda s: s(lambda x: {"a": x}, lambda a, **k: a * len(k))(3.0, z=2.0),
    "any keywords": lambda s: s(lambda x, **k: x * k.get("k", 1.0), jnp.sin, lambda x, /, k=1.0: x + k)(3.0, k=2.0),
    "given by position": lambda s: s(lambda x: (x, 5.0), lambda x, k=1.0: x * k)(3.0, k=2.0),
    "a builtin": lambda s: s(abs, lambda x, k: x + k)(-3.0, k=2.0),
    "nothing": lambda s: (s()(3.0), s()(1, 2), s()(a=3), s()()),
}


@pytest.mark.parametrize("name", SEQUENTIALS)
def test_keywords_of_sequential(name):
    same(lambda nnx, nn: SEQUENTIALS[name](nnx.Sequential))


def test_streams_and_flags_reach_the_layers_of_sequential():
    def program(nnx, nn):
        x, rngs = jnp.ones((2, 3)), nnx.Rngs(0)
        model = nnx.Sequential(nnx.Linear(3, 3, rngs=rngs), nnx.Dropout(0.5), nnx.BatchNorm(3, rngs=rngs))
        given = {"deterministic": True} if hasattr(nnx.Sequential, "__iter__") and NEW else {}
        return model(x, rngs=nnx.Rngs(1), **given)

    assert not isinstance(same(program), str)


def test_sequential_can_be_iterated():
    layers = [nnx.relu, nnx.tanh]
    assert list(nnx.Sequential(*layers)) == layers


def test_what_sequential_says_of_a_keyword_that_comes_twice(monkeypatch):
    monkeypatch.setattr(_flax_release, "FOLLOWED", (0, 12, 12))
    model = nnx.Sequential(lambda x: {"a": x}, lambda a: a)
    with pytest.raises(TypeError, match=r"Sequential.layers\[1\] gets \['a'\] twice: in the dict"):
        model(1.0, a=2.0)


def test_attention_that_decodes_with_a_causal_mask():
    def program(nnx, nn):
        layer = nnx.MultiHeadAttention(2, 4, decode=True, rngs=nnx.Rngs(0))
        layer.init_cache((1, 3, 4))
        return [layer(jnp.full((1, 1, 4), i + 1.0), is_causal=True) for i in range(3)]

    same(program)


@pytest.mark.parametrize("rate", [1.0, 1.5, -0.5])
def test_rates_of_dropout_in_attention(rate):
    """Flax 0.12.8 returns NaN and other nonsense; a layer that drops nothing does not care there."""
    attend = lambda nnx, nn: nnx.dot_product_attention(Q, Q, Q, dropout_rate=rate, dropout_rng=jax.random.key(0))
    ours, theirs = both(attend)
    assert ours == "ValueError" and (theirs == "ValueError" or not NEW)
    same(lambda nnx, nn: nnx.dot_product_attention(Q, Q, Q, dropout_rate=rate, deterministic=True))


class Mean(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(2)(x) + self.param("m", lambda key: x.mean() + 1)


def test_lazy_init_of_a_variable_that_depends_on_the_inputs(monkeypatch):
    shape = jax.ShapeDtypeStruct((2, 3), jnp.float32)
    monkeypatch.setattr(_flax_release, "FOLLOWED", (0, 12, 8))
    with pytest.raises(LazyInitError, match=r"lazy_init of Mean .* given as shapes only \(float32\[2,3\]\)"):
        Mean().lazy_init(jax.random.key(0), shape)
    monkeypatch.setattr(_flax_release, "FOLLOWED", (0, 12, 12))
    with pytest.warns(UserWarning, match="Here it is computed from zeros") as caught:
        variables = Mean().lazy_init(jax.random.key(0), shape)
    assert variables["params"]["m"] == 1.0 and caught[0].filename == __file__
    with warnings.catch_warnings(action="error"):
        linen.Dense(2).lazy_init(jax.random.key(0), shape)


def test_variables_without_a_value_can_be_references():
    shape = jax.ShapeDtypeStruct((2,), jnp.float32)
    variable = nnx.Variable(shape, ref=True)
    assert variable.ref and variable.shape == (2,) and variable.copy().get_raw_value() == shape


def test_metadata_of_boxes():
    def program(nnx, nn):
        box = nn.LogicallyPartitioned(jnp.ones(2), ("a",), rules=(("a", "b"),))
        metadata = dict(box.to_nnx_metadata())
        back = nn.LogicallyPartitioned.from_nnx_metadata({**metadata, "more": 1})
        partitioned = nn.Partitioned(jnp.ones(2), ("a",)).to_nnx_metadata()
        return repr(sorted(metadata.items())), repr(back), repr(sorted(partitioned.items()))

    assert "out_sharding" in same(program)[0]


def test_metadata_of_variables_in_linen():
    def program(nnx, nn):
        box = nnx.bridge.variables.to_linen_var(nnx.Param(jnp.ones(2), role=3))
        return sorted(box.metadata)

    same(program)


def test_axes_by_filter_are_a_mapping():
    def program(nnx, nn):
        axes = nnx.StateAxes({nnx.Param: 0, ...: None})
        sharding = nnx.StateSharding({nnx.Param: None})
        return (
            axes.filters == (nnx.Param, ...),
            axes.axes,
            list(axes.values()),
            [axes[f] for f in axes],
            axes.get(nnx.Param),
            len(axes),
            len(sharding.filters),
            sharding.shardings,
        )

    same(program)
    with pytest.raises(KeyError):
        nnx.StateAxes({nnx.Param: 0})[nnx.BatchStat]
