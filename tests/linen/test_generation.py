"""Programs that generate: an encoder and a decoder with a cache, in a loop that JAX compiles, against flax.linen."""

from typing import Any

import flax.linen as flax_nn
import jax
import jax.numpy as jnp
import pytest
from tests.linen.against_flax import assert_same, assert_same_runs

import sonde
from sonde import linen as nn

VOCABULARY, WIDTH, LENGTH, BEAMS = 11, 8, 6, 2
SOURCE = jnp.sin(jnp.arange(2 * 3 * WIDTH)).reshape(2, 3, WIDTH)
START = 1


def model_of(nn: Any) -> Any:
    class Layer(nn.Module):
        decode: bool

        @nn.compact
        def __call__(self, x, seen, mask):
            attend = {"num_heads": 2, "deterministic": True}
            own = nn.MultiHeadDotProductAttention(**attend, decode=self.decode)
            x = x + own(nn.LayerNorm()(x), mask=mask)
            x = x + nn.MultiHeadDotProductAttention(**attend, name="cross")(nn.LayerNorm()(x), seen)
            return x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(2 * WIDTH)(nn.LayerNorm()(x))))

    class Model(nn.Module):
        decode: bool = False

        def setup(self):
            self.tokens = nn.Embed(VOCABULARY, WIDTH, embedding_init=nn.initializers.normal(1.0))
            self.places = self.param("places", nn.initializers.normal(1.0), (LENGTH, WIDTH))
            self.encoder = nn.Dense(WIDTH)
            self.layers = [Layer(self.decode) for _ in range(2)]

        def encode(self, source):
            return nn.tanh(self.encoder(source))

        def decode_step(self, tokens, seen, place):
            x = self.tokens(tokens) + jax.lax.dynamic_slice_in_dim(self.places, place, tokens.shape[1])
            mask = None if self.decode else nn.make_causal_mask(tokens)
            for layer in self.layers:
                x = layer(x, seen, mask)
            return self.tokens.attend(x)

        def __call__(self, source, tokens):
            return self.decode_step(tokens, self.encode(source), 0)

    return Model


def generate(nn: Any, params: Any, *, beams: int, key: Any = None) -> Any:
    """The tokens and, with beams, their scores; the cache is gathered for the beams that go on."""
    model = model_of(nn)(decode=True)
    rows = SOURCE.shape[0] * beams
    seen = jnp.repeat(model.apply({"params": params}, SOURCE, method="encode"), beams, axis=0)
    shapes = jax.eval_shape(model.init, jax.random.key(0), SOURCE[:1].repeat(rows, 0), jnp.ones((rows, LENGTH), int))
    cache = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes["cache"])
    tokens = jnp.zeros((rows, LENGTH), int).at[:, 0].set(START)
    scores = jnp.where(jnp.arange(rows) % beams == 0, 0.0, -1e9)  # the beams of a row begin as one

    def more(state):
        i, tokens, *_ = state
        return (i < LENGTH) & ~jnp.all(tokens[:, -1] == START)

    def step(state):
        i, tokens, scores, cache = state
        last = jax.lax.dynamic_slice_in_dim(tokens, i - 1, 1, axis=1)
        variables = {"params": params, "cache": cache}
        logits, changed = model.apply(variables, last, seen, i - 1, method="decode_step", mutable=["cache"])
        chances = jax.nn.log_softmax(logits[:, 0])
        if key is not None:
            chances = chances + jax.random.gumbel(jax.random.fold_in(key, i), chances.shape)
        totals = (scores[:, None] + chances).reshape(-1, beams * VOCABULARY)
        scores, chosen = jax.lax.top_k(totals, beams)
        origin = (chosen // VOCABULARY + beams * jnp.arange(totals.shape[0])[:, None]).ravel()
        tokens = tokens[origin].at[:, i].set(chosen.ravel() % VOCABULARY)
        gather = lambda x: x[origin] if x.ndim else x
        return i + 1, tokens, scores.ravel(), jax.tree.map(gather, changed["cache"])

    return jax.lax.while_loop(more, step, (1, tokens, scores, cache))[1:3]


@pytest.fixture(scope="module")
def parameters():
    tokens = jnp.ones((2, LENGTH), int)
    make = lambda nn: model_of(nn)().init(jax.random.key(0), SOURCE, tokens)["params"]
    assert_same_runs(make, exact=True)
    return jax.jit(lambda: make(nn))()


@pytest.mark.every(2)
@pytest.mark.parametrize("options", [{"beams": BEAMS}, {"beams": 1}, {"beams": 1, "key": jax.random.key(5)}])
def test_the_same_tokens(parameters, options):
    ours, theirs = (jax.jit(lambda p, nn=nn: generate(nn, p, **options))(parameters) for nn in (nn, flax_nn))
    assert_same(ours, theirs)
    assert len(set(ours[0].ravel().tolist())) > 2  # they depend on the weights


def test_what_the_cached_steps_see_is_what_one_pass_sees(parameters):
    """The cross-attention of each step of the loop, recorded, is that of one pass over the tokens it made."""
    run = lambda p: generate(nn, p, beams=1)[0]
    wanted = "layers_1/cross/heads"
    tokens, steps = sonde.capture(jax.jit(run), wanted, last=LENGTH - 1)(parameters)
    whole, once = sonde.capture(model_of(nn)().apply, wanted)({"params": parameters}, SOURCE, tokens)
    del whole
    (seen,), (expected,) = steps.values(), once.values()
    assert_same(jnp.moveaxis(seen.value[:, :, 0], 0, 1), expected.value[:, : LENGTH - 1])
