"""Tools print and draw the same for layers in a Python loop and in a scan."""

from __future__ import annotations

import io
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console
from tests.tools.scanned import LAYERS, OTHERS, TOKENS, both

import sonde
from sonde import nnx
from sonde.report import examine
from sonde.tools import ablate, attribute, compare, first_nonfinite, logit_lens, patch_sweep, steer, summarize


def metric(logits: Any) -> Any:
    return logits[0, -1, 3] - logits[0, -1, 2]


def text(thing: Any) -> str:
    shown = io.StringIO()
    Console(width=200, file=shown).print(thing)
    return shown.getvalue()


def step(model: Any) -> Any:
    return jax.jit(lambda tokens: nnx.value_and_grad(lambda m: (m(tokens) ** 2).mean())(model))


@pytest.mark.every(2)
def test_compare_finds_all_values_of_both() -> None:
    models = both()
    found = compare(step(models["list"]), step(models["scan"]), rtol=1e-3, atol=1e-5, grads=True)(TOKENS)
    assert found.first is None and not found.only_first and not found.only_second
    _, records = sonde.capture(models["list"])(TOKENS)
    assert [d.path for d in found.drifts if not d.gradient] == list(records)
    changed = sonde.edit(models["scan"], {"blocks/2/mlp/out": lambda x: x + 0.1})
    first = compare(changed, models["list"])(TOKENS).first
    assert first is not None and first.path == "blocks/2/mlp/out" and first.iteration == ()


@pytest.mark.every(2)
@pytest.mark.parametrize("layers", ["list", "scan"])
def test_lens_and_sweep_show_every_layer(layers: str) -> None:
    model = both()[layers]
    lens = logit_lens(model, "blocks/*/out", readout=model.readout, k=1)(TOKENS)
    table = text(lens.table())
    _, records = sonde.capture(model)(TOKENS)
    for i in range(LAYERS):
        name = f"blocks/{i}/out"
        assert name in table
        best = jnp.argmax(model.readout(records[name].value), -1)
        assert (lens[name].tokens[..., 0] == best).all()
    sweep = patch_sweep(model, "blocks/*/out", "embedded", metric=metric)((TOKENS,), (OTHERS,))
    assert list(sweep.scores) == [*(f"blocks/{i}/out" for i in range(LAYERS)), "embedded"] or list(sweep.scores) == [
        "embedded",
        *(f"blocks/{i}/out" for i in range(LAYERS)),
    ]
    for i, position in ((0, 2), (2, 5), (1, 4)):
        clean = records[f"blocks/{i}/out"].value
        by_hand = sonde.edit(model, {f"blocks/{i}/out": lambda x, c=clean, p=position: x.at[:, p].set(c[:, p])})(OTHERS)
        np.testing.assert_allclose(sweep.scores[f"blocks/{i}/out"][position], metric(by_hand), rtol=1e-5)
    rows = [line for line in text(sweep).splitlines() if "blocks/" in line]
    assert len(rows) == LAYERS
    for line, (_, restored) in zip(rows, ((n, r) for n, r in sweep.restored.items() if n != "embedded")):
        assert f"{restored.max():.3f}" in line  # of its own layer, not of all
    assert sweep.stacked("blocks/*/out").shape == (LAYERS, TOKENS.shape[1])


@pytest.mark.every(2)
def test_the_same_numbers_for_both() -> None:
    models = both()
    direction = np.random.default_rng(0).normal(size=16).astype(np.float32)
    for make in (
        lambda m: ablate(m, "blocks/1/mlp/out"),
        lambda m: ablate(m, "blocks/{1..2}/attn/heads", units=1, unit_axis=-2),
        lambda m: steer(m, {"blocks/2/out": direction}, scale=2.0),
    ):
        one, other = (make(models[kind])(TOKENS) for kind in ("list", "scan"))
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
        assert np.abs(one - models["list"](TOKENS)).max() > 1e-2
    a, b = ([(r.path, r.iteration) for r in summarize(models[kind])(TOKENS)] for kind in ("list", "scan"))
    assert a == b
    sites = ("blocks/{1..2}/out", "embedded")  # integrated gradients: test_circuits_of_layers.py
    a, b = (attribute(models[kind], *sites, metric=metric, method="gradient")(TOKENS) for kind in ("list", "scan"))
    assert set(a) == set(b)
    for path in a:
        np.testing.assert_allclose(a[path][0], b[path][0], rtol=1e-3, atol=1e-6)
    for kind in ("list", "scan"):
        broken = sonde.edit(models[kind], {"blocks/2/mlp/out": lambda x: x * jnp.nan})
        found = first_nonfinite(broken)(TOKENS)
        assert found is not None and (found.path, found.iteration) == ("blocks/2/mlp/out", ())


def test_findings_judge_every_layer() -> None:
    models = both()

    def flat(x: Any) -> Any:
        return jnp.where(x > 0, 1.0 / jnp.sum(x > 0, -1, keepdims=True), 0.0)

    edits = {"blocks/1/attn/weights": flat}
    tokens = jnp.arange(16)[None]
    reports = [examine(sonde.edit(models[kind], edits), "blocks/*/attn/weights")(tokens) for kind in ("list", "scan")]
    found = [[(f.kind, f.path) for f in report.findings] for report in reports]
    assert found[0] == found[1]
    assert any(path == "blocks/1/attn/weights" for _, path in found[1])
    assert reports[0].paths == reports[1].paths


@pytest.mark.every(2)
@pytest.mark.parametrize("layers", ["list", "scan"])
def test_findings_are_of_the_layers_that_were_asked_for(layers: str) -> None:
    broken = sonde.edit(both()[layers], {"blocks/0/mlp/out": lambda x: x * jnp.nan})
    report = examine(broken, "blocks/{1..2}/out")(TOKENS)
    assert report.paths == ("blocks/1/out", "blocks/2/out")
    # The NaN is searched for in the whole program: it is made outside of what was asked for.
    assert [f.path for f in report.findings if f.kind == "nonfinite"] == ["blocks/0/mlp/out"]
