"""Dictionaries find planted features, splice into programs, and move to and from SAELens."""

from __future__ import annotations

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

import sonde
from sonde import dictionaries, nnx, store
from sonde.dictionaries import Dictionary
from sonde.errors import StoreError
from sonde.tools import ablate, attribute

RNG = np.random.default_rng(0)
TRUE = RNG.standard_normal((24, 12))
TRUE /= np.linalg.norm(TRUE, axis=1, keepdims=True)


def rows(n, seed):
    """Sums of a few of 24 directions in 12 dimensions."""
    rng = np.random.default_rng(seed)
    weights = rng.uniform(0.5, 2, (n, 24)) * (rng.random((n, 24)) < 0.08)
    return (weights @ TRUE).astype(np.float32)


def by_hand(dictionary, x):
    """The features, in NumPy, from the formulas."""
    w, b, c = (np.asarray(v[...]) for v in (dictionary.encoder, dictionary.encoder_bias, dictionary.decoder_bias))
    before = (x - c if dictionary.centred else x) @ w + b
    if dictionary.activation == "relu":
        return np.maximum(before, 0)
    if dictionary.activation == "jumprelu":
        return np.where(before > np.asarray(dictionary.threshold), before, 0)
    kept = np.argsort(-before, axis=-1, kind="stable")[:, : dictionary.k]
    mask = np.zeros(before.shape, bool)
    np.put_along_axis(mask, kept, True, -1)
    return np.where(mask, np.maximum(before, 0), 0)


OPTIONS = {"relu": {}, "topk": {"k": 3}, "jumprelu": {}}


@pytest.mark.parametrize("activation", OPTIONS)
@pytest.mark.parametrize("d_out", [None, 5])
def test_features_and_output_are_the_formulas(activation, d_out):
    made = Dictionary(12, 20, activation=activation, d_out=d_out, rngs=nnx.Rngs(1), **OPTIONS[activation])
    made.decoder_bias[...] = jnp.arange(made.d_out) / 10.0
    x = rows(7, 3)
    features = by_hand(made, x)
    np.testing.assert_allclose(made.encode(x), features, rtol=1e-4, atol=1e-5)
    expected = features @ np.asarray(made.decoder[...]) + np.asarray(made.decoder_bias[...])
    np.testing.assert_allclose(made(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.every(2)
@pytest.mark.parametrize(("activation", "sparsity"), [("relu", 0.6), ("topk", 0.0), ("jumprelu", 0.3)])
def test_training_finds_planted_directions(activation, sparsity):
    made = Dictionary(12, 32, activation=activation, rngs=nnx.Rngs(0), **OPTIONS[activation])
    batches = [rows(256, seed) for seed in range(40)]
    history = dictionaries.train(
        made, batches, steps=1000, sparsity=sparsity, learning_rate=1e-2, dead_after=100, report_every=300
    )
    figures = dictionaries.evaluate(made, [rows(1000, 999)])
    decoder = np.asarray(made.decoder[...])
    np.testing.assert_allclose(np.linalg.norm(decoder, axis=1), 1, rtol=1e-4)
    found = (TRUE @ decoder.T).max(1)
    assert (found > 0.9).mean() > 0.7, found
    assert figures.explained > 0.8 and figures.active < 6 and figures.dead < 16
    assert history.error[-1] < history.error[0] and history.steps[-1] == 999


def test_explained_variance_over_batches_is_that_of_all_rows():
    made = Dictionary(12, 20, rngs=nnx.Rngs(1))
    whole = rows(100, 5) + 3
    parts = dictionaries.evaluate(made, np.split(whole, [10, 40]))
    residual = ((np.asarray(made(whole)) - whole) ** 2).sum()
    assert parts.explained == pytest.approx(1 - residual / ((whole - whole.mean(0)) ** 2).sum(), rel=1e-4)
    assert parts.active == pytest.approx((by_hand(made, whole) > 0).sum(1).mean(), rel=1e-6)


def test_dead_features_are_revived():
    made = Dictionary(12, 32, activation="relu", rngs=nnx.Rngs(0))
    made.encoder_bias[...] = jnp.where(jnp.arange(32) < 16, -100.0, 0.0)
    history = dictionaries.train(made, [rows(256, s) for s in range(10)], steps=300, dead_after=50, sparsity=1e-3)
    assert history.revived >= 16
    assert dictionaries.evaluate(made, [rows(1000, 99)]).dead < 8


def test_a_transcoder_and_a_store(tmp_path):
    turn = jnp.asarray(np.linalg.qr(RNG.standard_normal((12, 12)))[0][:, :5], jnp.float32)
    f = lambda x: sonde.sow(sonde.sow(x, "in") @ turn, "out")
    kept = store.harvest(f, [rows(512, s) for s in range(8)], tmp_path, progress=False)
    made = Dictionary(12, 40, d_out=5, activation="topk", k=6, rngs=nnx.Rngs(0))
    batches = kept.batches(128, "in", "out", shuffle=0, epochs=None)
    dictionaries.train(made, batches, steps=600, learning_rate=3e-3, dead_after=0)
    test = rows(500, 99)
    assert dictionaries.evaluate(made, [(test, test @ np.asarray(turn))]).explained > 0.8
    with pytest.raises(ValueError, match="is a transcoder, from 12 to 5"):
        dictionaries.splice(f, {"in": made})


def model(x):
    h = sonde.sow(jnp.tanh(x), "block/h")
    return (h**2).sum(-1).mean()


def test_a_spliced_dictionary_is_the_program_written_by_hand():
    made = Dictionary(12, 20, rngs=nnx.Rngs(1))
    x = jnp.asarray(rows(6, 1))
    value, records = sonde.capture(jax.value_and_grad(dictionaries.splice(model, {"block/h": made})), grads=True)(x)
    features = records["block/h/features"]

    def readout(z):
        return (made.decode(z) ** 2).sum(-1).mean()

    z = by_hand(made, np.tanh(x))
    np.testing.assert_allclose(features.value, z, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(features.grad, jax.grad(readout)(jnp.asarray(z)), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(value[0], readout(z), rtol=1e-4)
    kept = dictionaries.splice(model, {"block/h": made}, keep_error=True)
    np.testing.assert_allclose(kept(x), model(x), rtol=1e-5)


def test_features_can_be_ablated_and_attributed():
    made = Dictionary(12, 20, rngs=nnx.Rngs(1))
    x = jnp.asarray(rows(6, 1))
    spliced = dictionaries.splice(model, {"block/h": made})
    without = ablate(spliced, "block/h/features", units=3)(x)
    z = by_hand(made, np.tanh(x))
    z[:, 3] = 0
    np.testing.assert_allclose(without, (made.decode(z) ** 2).sum(-1).mean(), rtol=1e-4)
    found = attribute(spliced, "block/h/features")(x)
    assert "block/h/features" in repr(found)


def test_features_are_below_the_site_of_a_model():
    model = eqx.nn.MLP(12, 3, 8, 1, key=jax.random.key(0))
    made = Dictionary(8, 20, rngs=nnx.Rngs(1))
    x = jnp.asarray(rows(6, 1))
    loss = lambda x: (jax.vmap(model)(x) ** 2).mean()
    spliced = dictionaries.splice(loss, {"layers/0/out": made}, inside=model)
    value, records = sonde.capture(jax.jit(spliced), "**/features", inside=model)(x)
    assert list(records) == ["layers/0/out/features"]
    np.testing.assert_allclose(
        records["layers/0/out/features"].value, by_hand(made, jax.vmap(model.layers[0])(x)), 1e-4
    )
    after = jax.vmap(lambda x: model.layers[1](jax.nn.relu(made(model.layers[0](x)))))(x)
    np.testing.assert_allclose(value, (after**2).mean(), rtol=1e-5)
    clean, without = loss(x), ablate(loss, "layers/0/out", inside=model)(x)
    recovered = dictionaries.loss_recovered(loss, "layers/0/out", made, [x], inside=model)
    assert recovered == pytest.approx(float((without - value) / (without - clean)), rel=1e-3)


def test_loss_recovered():
    made = Dictionary(12, 12, rngs=nnx.Rngs(0), centred=False)
    perfect = jnp.eye(12)
    made.encoder[...], made.decoder[...] = perfect, perfect
    loss = lambda x: ((sonde.sow(jnp.abs(x), "h") - jnp.abs(x)) ** 2).sum()
    assert dictionaries.loss_recovered(loss, "h", made, [rows(5, 1)]) == pytest.approx(1)
    made.decoder[...] = 0 * perfect
    assert dictionaries.loss_recovered(loss, "h", made, [rows(5, 1)]) == pytest.approx(0)


@pytest.mark.parametrize("activation", OPTIONS)
@pytest.mark.parametrize("d_out", [None, 5])
def test_saved_and_loaded(tmp_path, activation, d_out):
    made = Dictionary(12, 20, activation=activation, d_out=d_out, rngs=nnx.Rngs(1), **OPTIONS[activation])
    dictionaries.save(made, tmp_path, metadata={"hook_name": "blocks.3.hook_resid_post"})
    other = dictionaries.load(tmp_path)
    np.testing.assert_allclose(other(rows(5, 1)), made(rows(5, 1)), rtol=1e-5, atol=1e-6)
    assert json.loads((tmp_path / "cfg.json").read_text())["metadata"]["hook_name"] == "blocks.3.hook_resid_post"


def test_a_folder_that_others_wrote(tmp_path):
    """As SAELens lays a JumpReLU autoencoder out."""
    w, v = RNG.standard_normal((12, 20)).astype(np.float32), RNG.standard_normal((20, 12)).astype(np.float32)
    b, c = RNG.standard_normal(20).astype(np.float32), RNG.standard_normal(12).astype(np.float32)
    t = np.abs(RNG.standard_normal(20)).astype(np.float32)
    save_file({"W_enc": w, "W_dec": v, "b_enc": b, "b_dec": c, "threshold": t}, tmp_path / "sae_weights.safetensors")
    config = {"architecture": "jumprelu", "d_in": 12, "d_sae": 20, "apply_b_dec_to_input": True, "dtype": "float32"}
    (tmp_path / "cfg.json").write_text(json.dumps(config))
    x = rows(5, 1)
    before = (x - c) @ w + b
    np.testing.assert_allclose(
        dictionaries.load(tmp_path)(x), np.where(before > t, before, 0) @ v + c, rtol=1e-4, atol=1e-4
    )
    (tmp_path / "cfg.json").write_text(json.dumps(config | {"d_sae": 21}))
    with pytest.raises(StoreError, match=r"W_enc has shape \(12, 20\), the configuration says \(12, 21\)"):
        dictionaries.load(tmp_path)
    (tmp_path / "cfg.json").write_text(json.dumps(config | {"architecture": "gated"}))
    with pytest.raises(StoreError, match="of the kind 'gated'"):
        dictionaries.load(tmp_path)
    (tmp_path / "sae_weights.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="no sae_weights"):
        dictionaries.load(tmp_path)


def test_options_that_do_not_fit():
    with pytest.raises(ValueError, match="k= goes with"):
        Dictionary(4, 8, activation="topk", rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="k must be between 1"):
        Dictionary(4, 8, activation="topk", k=9, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="takes values of width 4"):
        Dictionary(4, 8, rngs=nnx.Rngs(0))(jnp.ones(5))
    with pytest.raises(ValueError, match="batches ended before step 10"):
        dictionaries.train(Dictionary(4, 8, rngs=nnx.Rngs(0)), iter([jnp.ones((2, 4))]), steps=10)
