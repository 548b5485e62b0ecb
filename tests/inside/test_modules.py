"""Models of six libraries as they are, against the same models with a site sown by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.inside.models import BY_HAND, KINDS, LIBRARIES, SITES, X

import sonde

pytestmark = pytest.mark.filterwarnings("ignore")  # of other libraries
CASES = [(library, kind) for library in LIBRARIES for kind in KINDS]
TRANSFORMS = {
    "jit": jax.jit,
    "vmap": lambda f: lambda p, x: jax.vmap(f, (None, 0))(p, jnp.stack([x, x + 1])),
    "scan": lambda f: lambda p, x: jax.lax.scan(lambda c, v: (c, f(p, v)), 0.0, jnp.stack([x, x + 1]))[1],
    "remat": jax.checkpoint,
}


def arrays(value):
    return [np.asarray(x) for x in jax.tree.leaves(value)]


def check(library, kind, transform):
    """Values, gradients and edits of one module, and the first value that is not finite."""
    model, params, apply, x = LIBRARIES[library](kind)
    site = SITES.get((library, kind), KINDS[kind])
    run = transform(lambda p, x: apply(p, x))
    loss = lambda p, x: (run(p, x) ** 2).sum()

    def by_hand(look):
        BY_HAND[0] = True
        try:
            return look()
        finally:
            BY_HAND[0] = False

    plain = loss(params, x)
    (value, _), mine = sonde.capture(jax.value_and_grad(loss), grads=True, inside=model)(params, x)
    _, hand = by_hand(lambda: sonde.capture(jax.value_and_grad(loss), grads=True)(params, x))
    np.testing.assert_allclose(value, plain, rtol=1e-6)
    assert site in mine, (site, list(mine))
    assert f"{site.removesuffix('out')}in" in mine
    # What a cell returns may be more than the state that is sown by hand.
    for got, want in zip(arrays(mine[site].values)[:1], arrays(hand[site].values)):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    whole = sum(arrays(mine[site].grads)) if kind == "recurrent" else arrays(mine[site].grads)[0]
    np.testing.assert_allclose(whole, arrays(hand[site].grads)[0], rtol=1e-4, atol=1e-5)

    halve = lambda v: jax.tree.map(lambda a: a * 0.5, v)
    edited = sonde.edit(run, {site: halve}, inside=model)(params, x)
    expected = by_hand(lambda: sonde.edit(transform(lambda p, x: apply(p, x)), {site: halve})(params, x))
    np.testing.assert_allclose(edited, expected, rtol=1e-5, atol=1e-6)

    found = sonde.first_nonfinite(run, inside=model)(params, x * jnp.inf)
    assert found is not None and found.path.rpartition("/")[2] == "in"
    assert sonde.first_nonfinite(run, inside=model)(params, x) is None


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_transformer_of_every_library(library):
    check(library, "transformer", TRANSFORMS["jit"])


@pytest.mark.thorough
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize(("library", "kind"), CASES)
def test_every_model_under_every_transform(library, kind, transform):
    check(library, kind, TRANSFORMS[transform])


def test_nothing_is_left_behind():
    model, params, apply, x = LIBRARIES["equinox"]("transformer")
    methods = [vars(type(m)).get("__call__") for m in (model, model.mlp, model.attention)]
    codes = [getattr(f, "method", f).__code__ for f in methods]
    sonde.capture(lambda x: model(x), inside=model)(x)
    assert [getattr(f, "method", f).__code__ for f in methods] == codes


def test_modules_of_a_model_called_by_a_function_have_their_paths():
    import equinox as eqx

    class Pair(eqx.Module):
        left: eqx.nn.Linear
        right: eqx.nn.Linear
        both: list

    one = eqx.nn.Linear(8, 8, key=jax.random.key(0))
    two = eqx.nn.Linear(8, 8, key=jax.random.key(1))
    pair = Pair(one, two, [one])

    @eqx.filter_jit
    def run(pair, x):
        return pair.right(pair.left(x)) + pair.both[0](x)

    _, records = sonde.capture(run, inside=pair)(pair, X[0, 0])
    assert {"left/out", "right/out"} <= set(records)
    np.testing.assert_allclose(records["right/in"].value, records["left/out"].values[0])


def test_methods_by_name():
    from flax import nnx

    class Coder(nnx.Module):
        def __init__(self):
            self.layer = nnx.Linear(8, 4, rngs=nnx.Rngs(0))

        def encode(self, x, scale=1.0):
            return self.layer(x) * scale

    coder = Coder()
    _, records = sonde.capture(lambda c, x: c.encode(x), inside=sonde.Inside(coder, methods=["encode"]))(coder, X)
    assert list(records) == ["encode/in", "layer/in", "layer/out", "encode/out"]
    assert records["encode/in"].value.shape == X.shape


@pytest.mark.parametrize("face", ["nnx", "linen"])
def test_models_of_sonde(face):
    if face == "nnx":
        from sonde import nnx

        model = nnx.Sequential(nnx.Linear(8, 4, rngs=nnx.Rngs(0)), nnx.relu)
        run, path = (lambda x: model(x)), "layers/0/out"
    else:
        from sonde import linen as nn

        model = nn.Sequential([nn.Dense(4), nn.relu])
        variables = model.init(jax.random.key(0), X)
        run, path = (lambda x: model.apply(variables, x)), "layers_0/out"
    plain = run(X)
    result, records = sonde.capture(jax.jit(run), inside=model)(X)
    np.testing.assert_allclose(result, plain, rtol=1e-6)
    np.testing.assert_allclose(jnp.maximum(records[path].value, 0), plain, rtol=1e-6)
    zero = sonde.edit(jax.jit(run), {path: jnp.zeros_like}, inside=model)(X)
    np.testing.assert_array_equal(zero, jnp.zeros_like(plain))


def test_a_model_and_variables_at_once():
    import flax.linen as nn

    model, params, apply, x = LIBRARIES["flax_linen"]("transformer")
    _, records = sonde.capture(jax.jit(apply), inside=[model, nn.attention.dot_product_attention_weights])(params, x)
    assert "attention/out" in records
    assert any(path.endswith("dot_product_attention_weights/attn_weights") for path in records)
