"""Runs of training: interrupted, several at once, on meshes, with ghosts; and crosscoders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sonde import dictionaries, nnx
from sonde.dictionaries import Crosscoder, CrossLayerTranscoder, Dictionary
from sonde.dictionaries.objective import objective
from sonde.errors import StoreError

TRUE = np.random.default_rng(0).standard_normal((24, 12))
TRUE /= np.linalg.norm(TRUE, axis=1, keepdims=True)


def rows(n: int, seed: int) -> np.ndarray:
    """Sums of a few of 24 directions in 12 dimensions."""
    rng = np.random.default_rng(seed)
    weights = rng.uniform(0.5, 2, (n, 24)) * (rng.random((n, 24)) < 0.08)
    return (weights @ TRUE).astype(np.float32)


BATCHES = [rows(64, seed) for seed in range(8)]
OPTIONS: dict[str, Any] = {"steps": 60, "learning_rate": 1e-2, "dead_after": 10, "report_every": 7, "warm_up": 5}


def new(activation: str = "relu", **options: Any) -> Dictionary:
    made = Dictionary(12, 32, activation=activation, rngs=nnx.Rngs(0), **options)
    made.encoder_bias[...] = jnp.where(jnp.arange(32) < 8, -9.0, 0.0)  # some are dead from the start
    return made


def same(a: Any, b: Any, **tolerance: float) -> None:
    for one, other in zip(*(jax.tree.leaves(nnx.state(x)) for x in (a, b)), strict=True):
        np.testing.assert_allclose(one, other, **{"rtol": 0, "atol": 0, **tolerance})


class Interrupted(Exception):
    pass


def stopped_after(n: int) -> Any:
    yield from (BATCHES * 10)[:n]
    raise Interrupted


@pytest.mark.every(3)
@pytest.mark.parametrize("form", ["relu", "batchtopk", "layers"])
def test_an_interrupted_run_ends_with_the_same_numbers(tmp_path: Path, form: str) -> None:
    def make() -> Any:
        if form == "layers":
            return CrossLayerTranscoder(12, 16, layers=2, rngs=nnx.Rngs(0))
        return new(form, **({"k": 3} if form == "batchtopk" else {}))

    def batches(n: int | None = None) -> Any:
        plain = iter(BATCHES * 10) if n is None else stopped_after(n)
        return (([x, -x], [2 * x, x]) for x in plain) if form == "layers" else plain

    whole, parts = make(), make()
    expected = dictionaries.train(whole, batches(), **OPTIONS)
    saved = {"checkpoint": tmp_path, "checkpoint_every": 12}
    with pytest.raises(Interrupted):
        dictionaries.train(parts, batches(41), **OPTIONS, **saved)
    again = make()
    assert dictionaries.train(again, batches(), **OPTIONS, **saved) == expected
    assert form == "layers" or expected.revived > 0
    same(whole, again)
    finished = make()  # a run that is done is not taken again
    assert dictionaries.train(finished, iter([]), **OPTIONS, **saved) == expected
    same(whole, finished)


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    dictionaries.train(new(), BATCHES, **OPTIONS, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="of another run: learning_rate was 0.01, not 0.1"):
        dictionaries.train(new(), BATCHES, **{**OPTIONS, "learning_rate": 0.1}, checkpoint=tmp_path)
    with pytest.raises(ValueError, match=r"of another dictionary: .* has the shape"):
        dictionaries.train(Dictionary(12, 16, rngs=nnx.Rngs(0)), BATCHES, **OPTIONS, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="of another dictionary: .*threshold"):
        dictionaries.train(new("jumprelu"), BATCHES, **OPTIONS, checkpoint=tmp_path)
    (tmp_path / "0.npz").write_bytes(b"nothing")
    with pytest.raises(StoreError, match="does not hold a checkpoint"):
        dictionaries.train(new(), BATCHES, **OPTIONS, checkpoint=tmp_path)


def test_several_are_trained_as_if_alone() -> None:
    weights, alone, together = (1e-3, 0.3), [new(), new()], [new(), new()]
    expected = [dictionaries.train(d, BATCHES, sparsity=w, **OPTIONS) for d, w in zip(alone, weights)]
    found = dictionaries.train(together, iter(BATCHES * 10), sparsity=weights, **OPTIONS)
    assert found == expected and expected[0].active[-1] > expected[1].active[-1]
    for one, other in zip(alone, together):
        same(one, other)
    with pytest.raises(ValueError, match="of one kind and width"):
        dictionaries.train([new(), Dictionary(6, 8, rngs=nnx.Rngs(0))], BATCHES, steps=1)
    with pytest.raises(ValueError, match="2 dictionaries and 3 weights"):
        dictionaries.train([new(), new()], BATCHES, steps=1, sparsity=[1, 2, 3])


@pytest.mark.every(3)
@pytest.mark.parametrize("shape", [(2,), (2, 1), (1, 2)])
def test_on_a_mesh(shape: tuple[int, ...]) -> None:
    mesh = jax.make_mesh(
        shape, ("rows", "features")[: len(shape)], axis_types=(jax.sharding.AxisType.Auto,) * len(shape)
    )
    plain, spread = new("batchtopk", k=3), new("batchtopk", k=3)
    options = {**OPTIONS, "steps": 25}
    expected = dictionaries.train(plain, BATCHES, **options)
    found = dictionaries.train(spread, BATCHES, mesh=mesh, **options)
    np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-3)
    assert len(spread.encoder[...].sharding.device_set) == 2
    if shape == (1, 2):
        assert {s.data.shape for s in spread.encoder[...].addressable_shards} == {(12, 16)}
        with pytest.raises(ValueError, match="33 features cannot be spread over 2 devices"):
            dictionaries.train(Dictionary(12, 33, rngs=nnx.Rngs(0)), BATCHES, steps=1, mesh=mesh)


def test_ghosts_revive_and_have_the_gradient_of_the_formula() -> None:
    made = new()
    x, dead = jnp.asarray(BATCHES[0]), jnp.arange(32) < 8
    _, slopes = nnx.value_and_grad(lambda d: objective(d, x, x, 0.0, dead)[0])(made)
    w, b, decoder = (np.asarray(v[...], np.float64) for v in (made.encoder, made.encoder_bias, made.decoder))
    before = BATCHES[0].astype(np.float64) @ w + b
    residual = BATCHES[0] - np.maximum(before, 0) @ decoder
    ghosts = np.where(np.asarray(dead), np.exp(before), 0)
    written = ghosts @ decoder
    factor = np.linalg.norm(residual, axis=1) / (2 * np.linalg.norm(written, axis=1) + 1e-6)
    missed = residual - written * factor[:, None]
    ratio = (residual**2).sum(1) / ((missed**2).sum(1) + 1e-6)
    by_hand = (-2 * (missed * (ratio * factor)[:, None]) @ decoder.T * ghosts).mean(0)
    np.testing.assert_allclose(slopes["encoder_bias"][...][:8], by_hand[:8], rtol=1e-3, atol=1e-8)
    without = nnx.value_and_grad(lambda d: objective(d, x, x, 0.0)[0])(made)[1]
    np.testing.assert_allclose(slopes["encoder_bias"][...][8:], without["encoder_bias"][...][8:], rtol=1e-5, atol=1e-7)
    assert not np.any(without["encoder_bias"][...][:8])
    options = {"steps": 200, "learning_rate": 1e-2, "dead_after": 20, "report_every": 25, "sparsity": 0.05}
    made.encoder_bias[...] = jnp.where(dead, -1.0, 0.0)
    trained = {after: nnx.clone(made) for after in (20, 0)}  # with ghosts, and with nothing done about dead features
    history = {
        after: dictionaries.train(each, BATCHES, dead="ghosts", **{**options, "dead_after": after})
        for after, each in trained.items()
    }
    density = {after: dictionaries.evaluate(each, BATCHES).density[:8] for after, each in trained.items()}
    assert max(history[20].dead) == 8 > min(history[20].dead[2:]) and history[20].revived == 0
    assert density[20].any() and not density[0].any()


@pytest.mark.every(3)
@pytest.mark.parametrize("options", [{}, {"activation": "topk", "k": 4}, {"activation": "jumprelu"}])
def test_a_crosscoder_tells_shared_features_from_those_of_one_site(tmp_path: Path, options: Any) -> None:
    """The first 12 directions are at both sites, in another basis; the rest are only at the first."""
    turn = np.linalg.qr(np.random.default_rng(1).standard_normal((12, 12)))[0]
    batches = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        weights = rng.uniform(0.5, 2, (256, 24)) * (rng.random((256, 24)) < 0.06)
        shared = np.where(np.arange(24) < 12, weights, 0)
        batches.append([(weights @ TRUE).astype(np.float32), (shared @ TRUE @ turn).astype(np.float32)])
    made = Crosscoder(12, 40, sites=2, rngs=nnx.Rngs(0), **options)
    sparsity = 0.3 if made.activation == "jumprelu" else 0.1
    history = dictionaries.train(made, batches, steps=600, sparsity=sparsity, learning_rate=1e-2, dead_after=100)
    assert history.error[-1] < 0.3
    first = np.asarray(made.decoder[...]).reshape(40, 2, 12)[:, 0]
    cosines = TRUE @ (first / np.maximum(np.linalg.norm(first, axis=1, keepdims=True), 1e-8)).T
    best, share = cosines.argmax(1), np.asarray(made.shares())[:, 0]
    found = cosines.max(1) > 0.9
    assert found[:12].mean() > 0.6 and found[12:].mean() > 0.6
    assert abs(np.median(share[best[:12][found[:12]]]) - 0.5) < 0.1
    assert np.median(share[best[12:][found[12:]]]) > 0.85
    outputs = made([batches[0][0], batches[0][1]])
    np.testing.assert_array_equal(made(np.stack(batches[0], 1))[1], outputs[1])
    dictionaries.save(made, tmp_path)
    again = dictionaries.load(tmp_path)
    assert isinstance(again, Crosscoder) and again.sites == 2
    same(made, again)


def test_a_crosscoder_counts_a_feature_by_its_lengths_at_all_sites() -> None:
    made = Crosscoder(3, 5, sites=2, rngs=nnx.Rngs(0))
    x = np.random.default_rng(0).standard_normal((7, 2, 3)).astype(np.float32)
    joined = x.reshape(7, 6)
    decoder = np.asarray(made.decoder[...])
    features = np.maximum(joined @ np.asarray(made.encoder[...]), 0)
    lengths = np.linalg.norm(decoder[:, :3], axis=1) + np.linalg.norm(decoder[:, 3:], axis=1)
    expected = ((features @ decoder - joined) ** 2).sum(1).mean() + 0.7 * (features * lengths).sum(1).mean()
    assert float(objective(made, joined, joined, 0.7)[0]) == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ValueError, match="2 sites takes as many values of width 3"):
        made([x[:, 0]])
    with pytest.raises(ValueError, match="is a crosscoder"):
        dictionaries.splice(lambda y: y, {"h": made})


def test_features_of_a_whole_batch_learn_as_well_as_those_of_each_input() -> None:
    rng = np.random.default_rng(1)
    true = rng.standard_normal((96, 32))
    true /= np.linalg.norm(true, axis=1, keepdims=True)
    planted = ((rng.random((20480, 96)) < 0.04) * rng.exponential(size=(20480, 96)) @ true).astype(np.float32)

    def error(activation: Any) -> float:
        dictionary = Dictionary(32, 128, activation=activation, k=4, rngs=nnx.Rngs(0))
        batches = (planted[i : i + 256] for i in range(0, 20480, 256))
        options = {"learning_rate": 3e-3, "dead_after": 200, "report_every": 399}
        return dictionaries.train(dictionary, list(batches) * 5, steps=400, **options).error[-1]

    assert error("batchtopk") < 1.15 * error("topk")
