"""Dictionaries find planted features, splice into programs, and move to and from SAELens."""

from __future__ import annotations

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import sonde
from sonde import dictionaries, nnx, store
from sonde.dictionaries import CrossLayerTranscoder, Dictionary
from sonde.errors import NoSuchSiteError, StoreError
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
    before = (x - c if dictionary.centered else x) @ w + b
    if dictionary.activation == "relu":
        return np.maximum(before, 0)
    if dictionary.activation in ("jumprelu", "batchtopk"):
        return np.where(before > np.asarray(dictionary.threshold[...]), np.maximum(before, 0), 0)
    if dictionary.activation == "gated":
        gate, gain = np.asarray(dictionary.gate_bias[...]), np.exp(np.asarray(dictionary.log_gain[...]))
        return np.where(before - b + gate > 0, np.maximum((before - b) * gain + b, 0), 0)
    kept = np.argsort(-before, axis=-1, kind="stable")[:, : dictionary.k]
    mask = np.zeros(before.shape, bool)
    np.put_along_axis(mask, kept, True, -1)
    return np.where(mask, np.maximum(before, 0), 0)


OPTIONS = {"relu": {}, "topk": {"k": 3}, "batchtopk": {"k": 2}, "jumprelu": {}, "gated": {}}
TYPES = [("autoencoder", None), ("transcoder", 12), ("transcoder", 5), ("skip_transcoder", 12), ("skip_transcoder", 5)]


def any_dictionary(kind, activation, d_out):
    """With random numbers in all arrays."""
    made = Dictionary(12, 20, kind=kind, activation=activation, d_out=d_out, rngs=nnx.Rngs(1), **OPTIONS[activation])
    rng = np.random.default_rng(len(kind) + len(activation))
    for name in ("encoder", "encoder_bias", "decoder", "decoder_bias", "threshold", "gate_bias", "log_gain", "skip"):
        if hasattr(made, name):
            variable = getattr(made, name)
            new = rng.standard_normal(variable.shape) * 0.5
            variable[...] = jnp.asarray(np.abs(new) if name == "threshold" else new, jnp.float32)
    return made


@pytest.mark.parametrize("activation", OPTIONS)
@pytest.mark.parametrize(("kind", "d_out"), TYPES)
def test_features_and_output_are_the_formulas(activation, kind, d_out):
    made = any_dictionary(kind, activation, d_out)
    x = rows(7, 3)
    features = by_hand(made, x)
    np.testing.assert_allclose(made.encode(x), features, rtol=1e-4, atol=1e-5)
    expected = features @ np.asarray(made.decoder[...]) + np.asarray(made.decoder_bias[...])
    if kind == "skip_transcoder":
        expected = expected + x @ np.asarray(made.skip[...])
    np.testing.assert_allclose(made(x), expected, rtol=1e-4, atol=1e-4)
    if activation not in ("topk", "batchtopk"):  # which features are the largest depends on their lengths
        made.rescale()
        np.testing.assert_allclose(np.linalg.norm(np.asarray(made.decoder[...]), axis=1), 1, rtol=1e-5)
        np.testing.assert_allclose(made(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("activation", "sparsity"),
    [("relu", 0.6), ("topk", 0.0), ("batchtopk", 0.0), ("jumprelu", 0.3), ("gated", 0.6)],
)
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
    output, lengths = np.asarray(made(whole)), np.linalg.norm(whole, axis=1)
    cosines = (output * whole).sum(1) / np.linalg.norm(output, axis=1) / lengths
    expected = [
        by_hand(made, whole).sum(1).mean(),
        ((output - whole) ** 2).mean(),
        cosines.mean(),
        (np.linalg.norm(output, axis=1) / lengths).mean(),
    ]
    found = [parts.size, parts.squared_error, parts.cosine, parts.relative_length]
    np.testing.assert_allclose(found, expected, rtol=1e-4)


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
    batches = kept.batches(128, "in", "out", shuffle=True, epochs=None)
    dictionaries.train(made, batches, steps=600, learning_rate=3e-3, dead_after=0)
    test = rows(500, 99)
    assert dictionaries.evaluate(made, [(test, test @ np.asarray(turn))]).explained > 0.8
    with pytest.raises(ValueError, match=r"of the kind transcoder, from 12 to 5: it goes with a pair of patterns"):
        dictionaries.splice(f, {"in": made})
    np.testing.assert_allclose(dictionaries.splice(f, {("in", "out"): made})(test), made(test), rtol=1e-5)
    with pytest.raises(ValueError, match="of the kind transcoder is inputs and targets, got 1 arrays"):
        dictionaries.train(made, [test], steps=1)


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
    made = Dictionary(12, 12, rngs=nnx.Rngs(0), centered=False)
    perfect = jnp.eye(12)
    made.encoder[...], made.decoder[...] = perfect, perfect
    loss = lambda x: ((sonde.sow(jnp.abs(x), "h") - jnp.abs(x)) ** 2).sum()
    assert dictionaries.loss_recovered(loss, "h", made, [rows(5, 1)]) == pytest.approx(1)
    made.decoder[...] = 0 * perfect
    assert dictionaries.loss_recovered(loss, "h", made, [rows(5, 1)]) == pytest.approx(0)


def test_predictions_recovered():
    made = any_dictionary("autoencoder", "relu", None)
    table = jax.random.normal(jax.random.key(2), (12, 5))
    f = lambda x: sonde.sow(x, "h") @ table
    x = rows(7, 1)

    def divergence(h):  # with NumPy, position by position
        p, q = (np.exp(np.asarray(y, np.float64)) for y in (x @ table, h @ table))
        p, q = p / p.sum(1, keepdims=True), q / q.sum(1, keepdims=True)
        return sum(float(p[i] @ np.log(p[i] / q[i])) for i in range(len(p)))

    without, spliced = divergence(0 * x), divergence(made(x))
    found = dictionaries.kl_recovered(f, "h", made, [x[:3], x[3:]])
    assert found == pytest.approx((without - spliced) / without, rel=1e-4)


def test_absorption_one_input_at_a_time():
    """Features near the probe, so that all cases occur, each input by hand."""
    random = np.random.default_rng(0)
    probe = random.standard_normal(6)
    made = Dictionary(6, 12, centered=False, rngs=nnx.Rngs(0))
    decoder = random.standard_normal((12, 6)) + 0.6 * probe
    made.decoder[...], made.encoder[...] = jnp.asarray(decoder), jnp.asarray(random.standard_normal((6, 12)) * 0.3)
    vectors = (random.standard_normal((400, 6)) + 0.5 * probe).astype(np.float32)
    main = [1, 4]
    found = dictionaries.absorption(made, vectors, 3 * probe, main)
    unit = probe / np.linalg.norm(probe)
    cases = set()
    for x, share, is_full in zip(vectors, found.shares, found.is_full):
        active = np.maximum(x @ np.asarray(made.encoder[...]), 0)
        parts = [a * float(row @ unit) for a, row in zip(active, decoder)]
        near = [float(row @ unit) / np.linalg.norm(row) for row in decoder]
        whole, of_main = float(x @ unit), sum(parts[i] for i in main)
        others = sorted((p for i, p in enumerate(parts) if i not in main and near[i] >= 0.1 and p > 0), reverse=True)
        of_others = sum(others[:3])
        if of_main >= whole or of_others / whole < 0.4:
            expected, case = 0.0, "none"
        elif of_main <= 0:
            expected, case = 1.0, "all"
        else:
            taken = min(of_others, whole - of_main)
            expected, case = taken / (taken + of_main), "part"
        top = int(np.argmax(parts))
        full = whole >= 0 and all(active[i] < 1e-8 for i in main) and near[top] >= 0.025 and parts[top] / whole >= 0.4
        assert share == pytest.approx(expected, abs=1e-4) and is_full == full
        cases |= {case, full}
    assert cases == {"none", "part", "all", True, False}
    assert (found.mean, found.full) == (pytest.approx(found.shares.mean()), pytest.approx(found.is_full.mean()))
    for wrong in ({"features": []}, {"features": [12]}, {"direction": 0 * probe}, {"vectors": vectors[:, :5]}):
        with pytest.raises(ValueError, match="absorption: "):
            dictionaries.absorption(made, **{"vectors": vectors, "direction": probe, "features": main, **wrong})


@pytest.mark.parametrize("activation", OPTIONS)
@pytest.mark.parametrize(("kind", "d_out"), TYPES)
def test_saved_and_loaded(tmp_path, activation, kind, d_out):
    made = any_dictionary(kind, activation, d_out)
    dictionaries.save(made, tmp_path, metadata={"hook_name": "blocks.3.hook_resid_post"})
    other = dictionaries.load(tmp_path)
    assert other.kind == kind and other.d_out == made.d_out
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
    (tmp_path / "cfg.json").write_text(json.dumps(config | {"architecture": "temporal"}))
    with pytest.raises(StoreError, match="of the kind 'temporal'"):
        dictionaries.load(tmp_path)
    (tmp_path / "sae_weights.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="no sae_weights"):
        dictionaries.load(tmp_path)


ARCHITECTURES = {
    ("autoencoder", "relu", None): "standard",
    ("autoencoder", "topk", None): "topk",
    ("autoencoder", "batchtopk", None): "jumprelu",
    ("autoencoder", "gated", None): "gated",
    ("transcoder", "relu", 12): "transcoder",
    ("transcoder", "jumprelu", 5): "jumprelu_transcoder",
    ("skip_transcoder", "relu", 12): "skip_transcoder",
    ("skip_transcoder", "jumprelu", 12): "jumprelu_skip_transcoder",
    ("transcoder", "topk", 12): "topk",  # which computes the same: SAELens has no other TopK
    ("transcoder", "topk", 5): "topk_transcoder",  # which SAELens refuses, where it would take a ReLU for a TopK
}


@pytest.mark.parametrize(("made", "architecture"), ARCHITECTURES.items())
def test_the_architecture_says_what_is_computed(tmp_path, made, architecture):
    kind, activation, d_out = made
    dictionaries.save(any_dictionary(kind, activation, d_out), tmp_path)
    config = json.loads((tmp_path / "cfg.json").read_text())
    assert config["architecture"] == architecture
    assert config["apply_b_dec_to_input"] is (kind == "autoencoder")


def test_the_largest_features_of_a_decoder_with_unit_rows(tmp_path):
    """SAELens trains TopK so that decoder rows count as if they had length one."""
    w, v = RNG.standard_normal((12, 20)).astype(np.float32), RNG.standard_normal((20, 12)).astype(np.float32)
    v *= np.linspace(0.1, 4, 20, dtype=np.float32)[:, None]
    b, c = RNG.standard_normal(20).astype(np.float32), RNG.standard_normal(12).astype(np.float32)
    save_file({"W_enc": w, "W_dec": v, "b_enc": b, "b_dec": c}, tmp_path / "sae_weights.safetensors")
    config = {"architecture": "topk", "d_in": 12, "d_sae": 20, "k": 3}
    x, lengths = rows(5, 1), np.linalg.norm(v, axis=1)
    for rescale in (True, False):
        (tmp_path / "cfg.json").write_text(json.dumps(config | {"rescale_acts_by_decoder_norm": rescale}))
        before = ((x - c) @ w + b) * (lengths if rescale else 1)  # not named: the bias is subtracted, as in SAELens
        kept = np.where(before >= np.sort(before)[:, -3:-2], np.maximum(before, 0), 0)
        expected = kept / (lengths if rescale else 1) @ v + c
        np.testing.assert_allclose(dictionaries.load(tmp_path)(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.every(2)
def test_more_weight_on_sparsity_leaves_fewer_features():
    batches = [3 * rows(256, seed) for seed in range(40)]
    active = []
    for weight in (0.3, 3, 30):
        made = Dictionary(12, 64, activation="jumprelu", rngs=nnx.Rngs(0))
        dictionaries.train(made, batches, steps=400, sparsity=weight, dead_after=0, learning_rate=1e-3)
        active.append(dictionaries.evaluate(made, batches[:4]).active)
    assert active[0] > 1.2 * active[1] and active[1] > 1.2 * active[2], active


@pytest.mark.every(2)
def test_nested_features_reconstruct_alone():
    batches = [rows(256, seed) for seed in range(40)]
    errors = {}
    for nested in ((), (8, 16)):
        made = Dictionary(12, 32, activation="batchtopk", k=3, nested=nested, rngs=nnx.Rngs(0))
        dictionaries.train(made, batches, steps=400, learning_rate=1e-2, dead_after=0)
        x = rows(500, 99)
        few = jnp.where(jnp.arange(32) < 8, made.encode(x), 0)
        errors[nested] = float(((made.decode(few) - x) ** 2).mean())
    assert errors[8, 16] < 0.8 * errors[()], errors


@pytest.mark.parametrize("form", ["list", "scan"])
@pytest.mark.parametrize("kind", ["transcoder", "skip_transcoder"])
def test_a_spliced_transcoder_is_the_program_written_by_hand(form, kind):
    weights = jnp.asarray(RNG.standard_normal((3, 12, 12)) / 3, jnp.float32)
    made = any_dictionary(kind, "relu", 12)

    def layer(x, w):
        return x + sonde.sow(jnp.tanh(sonde.sow(x, "in") @ w), "out"), None

    def model(x):
        if form == "scan":
            with sonde.scope("blocks/*"):
                return jax.lax.scan(layer, x, weights)[0]
        for i, w in enumerate(weights):
            with sonde.scope(f"blocks/{i}"):
                x, _ = layer(x, w)
        return x

    x = jnp.asarray(rows(6, 1))
    spliced = dictionaries.splice(model, {("blocks/1/in", "blocks/1/out"): made})
    result, records = sonde.capture(spliced, "**/features")(x)
    first = x + jnp.tanh(x @ weights[0])
    second = first + made(first)
    np.testing.assert_allclose(result, second + jnp.tanh(second @ weights[2]), rtol=1e-4, atol=1e-5)
    assert list(records) == ["blocks/1/out/features"]
    np.testing.assert_allclose(records["blocks/1/out/features"].value, by_hand(made, first), rtol=1e-4, atol=1e-5)
    kept = dictionaries.splice(model, {("blocks/1/in", "blocks/1/out"): made}, keep_error=True)
    np.testing.assert_allclose(jax.jit(kept)(x), model(x), rtol=1e-4, atol=1e-5)
    with pytest.raises(sonde.errors.EditError, match="computed before what it reads"):
        dictionaries.splice(model, {("blocks/1/out", "blocks/1/in"): made})(x)
    with pytest.raises(sonde.errors.EditError, match="another row of a loop" if form == "scan" else "before what"):
        dictionaries.splice(model, {("blocks/2/in", "blocks/1/out"): made})(x)
    with pytest.raises(NoSuchSiteError, match="'blocks/9/out'"):
        dictionaries.splice(model, {("blocks/1/in", "blocks/9/out"): made})(x)


def test_a_spliced_cross_layer_transcoder_is_the_program_written_by_hand():
    weights = jnp.asarray(RNG.standard_normal((3, 12, 12)) / 3, jnp.float32)
    across = CrossLayerTranscoder(12, 20, layers=2, rngs=nnx.Rngs(0))
    for part in across.parts:
        part.decoder[...] = jnp.asarray(RNG.standard_normal(part.decoder.shape) * 0.1, jnp.float32)
        part.decoder_bias[...] = jnp.asarray(RNG.standard_normal(part.decoder_bias.shape), jnp.float32)

    def model(x):
        for i, w in enumerate(weights):
            x = x + sonde.sow(jnp.tanh(sonde.sow(x, f"{i}/in") @ w), f"{i}/out")
        return x

    place = (("0/in", "1/in"), ("0/out", "1/out"))
    x = jnp.asarray(rows(6, 1))
    spliced = dictionaries.splice(model, {place: across})
    result, records = sonde.capture(spliced, "**/features")(x)
    assert list(records) == ["0/out/features", "1/out/features"]
    first, second = across.parts
    of_first = by_hand(first, x)
    written = of_first @ np.asarray(first.decoder[...]) + np.asarray(first.decoder_bias[...])
    after = x + written[:, :12]
    of_second = by_hand(second, after)
    then = after + written[:, 12:] + of_second @ np.asarray(second.decoder[...]) + np.asarray(second.decoder_bias[...])
    np.testing.assert_allclose(result, then + jnp.tanh(then @ weights[2]), rtol=1e-4, atol=1e-4)
    kept = dictionaries.splice(model, {place: across}, keep_error=True)
    np.testing.assert_allclose(jax.jit(kept)(x), model(x), rtol=1e-4, atol=1e-5)
    # A feature that is taken away is missing in both layers, and the error stays what it was.
    less = ablate(kept, "0/out/features")(x)
    after = x + jnp.tanh(x @ weights[0]) - of_first @ first.decoder[...][:, :12]
    then = after + jnp.tanh(after @ weights[1]) - of_first @ first.decoder[...][:, 12:]
    np.testing.assert_allclose(less, then + jnp.tanh(then @ weights[2]), rtol=1e-4, atol=1e-4)
    with pytest.raises(sonde.errors.EditError, match="all its sites in one function, in the order"):
        dictionaries.splice(model, {(("1/in", "0/in"), ("1/out", "0/out")): across})(x)
    with pytest.raises(NoSuchSiteError, match="'9/out'"):
        dictionaries.splice(model, {(("0/in", "1/in"), ("0/out", "9/out")): across})(x)

    def scanned(x):
        with sonde.scope("*"):
            return jax.lax.scan(lambda x, w: (x + sonde.sow(jnp.tanh(sonde.sow(x, "in") @ w), "out"), None), x, weights)

    with pytest.raises(sonde.errors.EditError, match="a model whose layers are a list"):
        dictionaries.splice(scanned, {place: across})(x)


@pytest.mark.every(2)
def test_a_cross_layer_transcoder_learns_what_its_layers_share():
    """Each input feature writes to its own layer and to the next, which only a decoder across layers can say."""
    rng = np.random.default_rng(3)
    directions = [rng.standard_normal((24, 12)).astype(np.float32) for _ in range(3)]
    batches = []
    for _ in range(40):
        weights = (rng.uniform(0.5, 2, (256, 24)) * (rng.random((256, 24)) < 0.08)).astype(np.float32)
        x, noise = weights @ TRUE.astype(np.float32), rng.standard_normal((256, 12)).astype(np.float32)
        batches.append(([x, noise], [weights @ directions[0], weights @ directions[1]]))
    for activation, options in (("relu", {}), ("topk", {"k": 4}), ("batchtopk", {"k": 4})):
        across = CrossLayerTranscoder(12, 32, layers=2, activation=activation, rngs=nnx.Rngs(0), **options)
        history = dictionaries.train(
            across, batches, steps=400, sparsity=0.05, learning_rate=1e-2, dead_after=100, report_every=50
        )
        # The second layer reads noise: without features of the first, half of the variance would be missing.
        assert history.error[-1] < 0.35 and history.error[0] > 0.8, (activation, history.error)
        first = across.parts[0]
        np.testing.assert_allclose(np.linalg.norm(first.decoder[...], axis=1), 1, rtol=1e-4)
    with pytest.raises(ValueError, match="a pair of 2 inputs and 2 targets"):
        dictionaries.train(across, [batches[0][0][:1]], steps=1)


def test_cross_layer_files(tmp_path):
    across = CrossLayerTranscoder(12, 20, layers=3, d_out=5, activation="jumprelu", rngs=nnx.Rngs(0))
    for part in across.parts:
        part.decoder_bias[...] = jnp.asarray(RNG.standard_normal(part.decoder_bias.shape), jnp.float32)
        part.threshold[...] = jnp.asarray(np.abs(RNG.standard_normal(20)), jnp.float32)
    dictionaries.save(across, tmp_path)
    inputs = [rows(4, seed) for seed in range(3)]
    for ours, again in zip(across(inputs), dictionaries.load_cross_layer(tmp_path)(inputs)):
        np.testing.assert_allclose(again, ours, rtol=1e-4, atol=1e-5)
    # As circuit-tracer computes it from the arrays of the files.
    arrays = {}
    for i in range(3):
        arrays |= load_file(tmp_path / f"W_enc_{i}.safetensors") | load_file(tmp_path / f"W_dec_{i}.safetensors")
    output = np.stack([np.broadcast_to(arrays[f"b_dec_{i}"], (4, 5)) for i in range(3)])
    for i in range(3):
        before = inputs[i] @ arrays[f"W_enc_{i}"].T + arrays[f"b_enc_{i}"]
        features = np.where(before > arrays[f"threshold_{i}"], before, 0)
        output[i:] += np.einsum("nf,flo->lno", features, arrays[f"W_dec_{i}"])
    np.testing.assert_allclose(np.stack(across(inputs)), output, rtol=1e-4, atol=1e-5)
    (tmp_path / "W_dec_1.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="W_dec_1"):
        dictionaries.load_cross_layer(tmp_path)
    save_file({"W_dec_1": np.zeros((20, 3, 5), np.float32)}, tmp_path / "W_dec_1.safetensors")
    with pytest.raises(StoreError, match=r"W_dec_1 has the shape \(20, 3, 5\), expected \(20, 2, 5\)"):
        dictionaries.load_cross_layer(tmp_path)


def test_features_are_below_the_whole_name_of_the_site():
    made, x = any_dictionary("transcoder", "relu", 12), jnp.asarray(rows(3, 1))

    def model(x):
        return sonde.sow(jnp.tanh(sonde.sow(x, "mlp/in")), "mlp/out")

    def outer(x):
        with sonde.scope("block"):
            return jax.jit(model)(x)

    for f, scope in ((model, ""), (outer, "block/"), (jax.jit(outer), "block/")):
        spliced = dictionaries.splice(f, {(f"{scope}mlp/in", f"{scope}mlp/out"): made})
        assert list(sonde.capture(spliced, "**/features")(x)[1]) == [f"{scope}mlp/out/features"]


def test_a_batchtopk_that_is_still_trained_is_read(tmp_path):
    w, v = RNG.standard_normal((12, 20)).astype(np.float32), RNG.standard_normal((20, 12)).astype(np.float32)
    b, c = RNG.standard_normal(20).astype(np.float32), RNG.standard_normal(12).astype(np.float32)
    arrays = {"W_enc": w, "W_dec": v, "b_enc": b, "b_dec": c, "topk_threshold": np.float32([0.4]).reshape(())}
    save_file(arrays, tmp_path / "sae_weights.safetensors")
    config = {"architecture": "matryoshka_batchtopk", "d_in": 12, "d_sae": 20, "k": 3, "apply_b_dec_to_input": True}
    x, lengths = rows(5, 1), np.linalg.norm(v, axis=1)
    for rescale in (True, False):
        (tmp_path / "cfg.json").write_text(json.dumps(config | {"rescale_acts_by_decoder_norm": rescale}))
        features = ((x - c) @ w + b) * (lengths if rescale else 1)
        expected = np.where(features > 0.4, features, 0) / (lengths if rescale else 1) @ v + c
        np.testing.assert_allclose(dictionaries.load(tmp_path)(x), expected, rtol=1e-4, atol=1e-4)


def test_a_transcoder_across_jitted_functions():
    inner = jax.jit(lambda x: sonde.sow(x * 2, "in"))
    made = any_dictionary("transcoder", "relu", 12)
    model = lambda x: sonde.sow(inner(x) + 1, "out")
    with pytest.raises(sonde.errors.EditError, match="in another jitted function"):
        dictionaries.splice(jax.jit(model), {("in", "out"): made})(rows(3, 1))


def test_options_that_do_not_fit():
    with pytest.raises(ValueError, match="k= goes with"):
        Dictionary(4, 8, activation="topk", rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="k must be between 1"):
        Dictionary(4, 8, activation="topk", k=9, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="kind must be one of autoencoder, transcoder, skip_transcoder, got 'x'"):
        Dictionary(4, 8, kind="x", rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="writes what it reads, but d_in is 4 and d_out is 5"):
        Dictionary(4, 8, kind="autoencoder", d_out=5, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"growing numbers between 0 and the number of features, 8, got \(4, 2\)"):
        Dictionary(4, 8, nested=(4, 2), rngs=nnx.Rngs(0))
    assert Dictionary(4, 8, d_out=4, rngs=nnx.Rngs(0)).kind == "transcoder"
    with pytest.raises(ValueError, match="it goes with one pattern"):
        dictionaries.splice(model, {("a", "b"): Dictionary(4, 8, rngs=nnx.Rngs(0))})
    with pytest.raises(ValueError, match="takes values of width 4"):
        Dictionary(4, 8, rngs=nnx.Rngs(0))(jnp.ones(5))
    with pytest.raises(ValueError, match="batches ended before step 10"):
        dictionaries.train(Dictionary(4, 8, rngs=nnx.Rngs(0)), iter([jnp.ones((2, 4))]), steps=10)
