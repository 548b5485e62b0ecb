"""Examples, densities and logit effects of units, against NumPy."""

from __future__ import annotations

import io
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import sonde
from sonde import nnx
from sonde.dictionaries import Dictionary, splice
from sonde.tools import logit_effects, probe, top_examples

RNG = np.random.default_rng(0)
TABLE = jnp.asarray(RNG.standard_normal((30, 6)), jnp.float32)
BATCHES = [RNG.integers(0, 30, (3, 7)) for _ in range(4)]


def model(tokens: jax.Array) -> jax.Array:
    with sonde.scope("blocks/*"):
        step = lambda h, i: (sonde.sow(jnp.cumsum(h, -2) * 0.1 + i, "out"), None)
        return jax.lax.scan(step, TABLE[tokens], jnp.arange(2.0))[0]


def test_examples_of_spliced_features_and_of_rows_of_a_scan() -> None:
    dictionary = Dictionary(6, 9, rngs=nnx.Rngs(0))
    spliced = splice(model, {"blocks/1/out": dictionary})
    found = top_examples(spliced, "**/features", "blocks/0/out", k=4)(map(jnp.asarray, BATCHES))
    texts = np.concatenate(BATCHES)
    values = np.concatenate([np.cumsum(np.asarray(TABLE)[batch], -2) * 0.1 for batch in BATCHES])
    features = np.asarray(dictionary.encode(jnp.asarray(np.cumsum(values, -2) * 0.1 + 1, jnp.float32)))
    assert list(found) == ["blocks/0/out", "blocks/1/out/features"]
    for name, whole in (("blocks/0/out", values), ("blocks/1/out/features", features)):
        units = found[name]
        active = whole > 0
        np.testing.assert_allclose(units.density, active.mean((0, 1)), rtol=1e-6)
        means = np.where(active, whole, 0).sum((0, 1)) / np.maximum(active.sum((0, 1)), 1)
        np.testing.assert_allclose(units.mean, means, rtol=1e-4, atol=1e-6)
        for unit in range(whole.shape[-1]):
            best = np.sort(whole[..., unit].ravel())[::-1][:4]
            np.testing.assert_allclose(units.values[unit], best, rtol=1e-4, atol=1e-6)
            for example in units.of(unit, context=2):
                assert whole[example.text, example.position, unit] == pytest.approx(example.value, rel=1e-4)
                tokens = texts[example.text].tolist()
                at = example.position
                assert example.token == tokens[at] and list(example.before) == tokens[max(0, at - 2) : at]
                assert list(example.after) == tokens[at + 1 : at + 3]
    console = Console(width=100, record=True, file=io.StringIO())
    unit = int(np.argmax(found["blocks/0/out"].density))
    console.print(found["blocks/0/out"].table(unit, lambda token: f"<{token}>"))
    first = found["blocks/0/out"].of(unit)[0]
    assert f"<{first.token}>" in console.export_text()


def test_no_batches_and_no_positions() -> None:
    with pytest.raises(ValueError, match="there are no batches"):
        top_examples(model, "blocks/*/out")([])
    with pytest.raises(ValueError, match="name the sites"):
        top_examples(model)
    with pytest.raises(ValueError, match=r"has the shape \[4\]"):
        top_examples(lambda x: sonde.sow(x * 1.0, "h"), "h")([jnp.arange(4)])


def test_logit_effects_are_rows_of_the_decoder_read_by_the_output_layer() -> None:
    directions, matrix = RNG.standard_normal((5, 6)).astype(np.float32), RNG.standard_normal((6, 11)).astype(np.float32)
    effects = logit_effects(directions, lambda h: h @ matrix, k=3)
    logits = directions @ matrix
    logits -= logits.mean(1, keepdims=True)
    np.testing.assert_array_equal(effects.raised, np.argsort(-logits)[:, :3])
    np.testing.assert_array_equal(effects.lowered, np.argsort(logits)[:, :3])
    np.testing.assert_allclose(effects.raised_by, np.sort(logits)[:, ::-1][:, :3], rtol=1e-4)
    np.testing.assert_allclose(effects.lowered_by, np.sort(logits)[:, :3], rtol=1e-4)
    with pytest.raises(ValueError, match="is not linear"):
        logit_effects(directions, lambda h: h @ matrix / jnp.linalg.norm(h))
    with pytest.raises(ValueError, match="has no 12 tokens"):
        logit_effects(directions, lambda h: h @ matrix, k=12)


def test_a_sparse_probe_uses_the_units_that_tell() -> None:
    x = RNG.standard_normal((400, 20)).astype(np.float32)
    labels = x[:, 3] + 0.5 * x[:, 7] > 0
    sparse: Any = probe({"h": x}, labels, units=2)
    used = np.flatnonzero(np.abs(sparse.weights["h"]).sum(1))
    assert used.tolist() == [3, 7] and sparse.accuracy["h"] > 0.9
    noise = probe({"h": np.delete(x, [3, 7], 1)}, labels, units=2)
    assert noise.accuracy["h"] < 0.7
    with pytest.raises(ValueError, match="units= is at least 1"):
        probe({"h": x}, labels, units=0)
