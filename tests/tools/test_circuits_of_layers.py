"""Circuit tools on a language model with layers in a list and in a scan: equal, and correct."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.tools.scanned import LAYERS, OTHERS, TOKENS, both

import sonde
from sonde.errors import NoSuchSiteError
from sonde.tools import ablate, attribute, attribute_edges, logit_attribution, patch_paths, patch_sweep

END = f"blocks/{LAYERS - 1}/out"


def metric(logits: Any) -> Any:
    return logits[0, -1, 3] - logits[0, -1, 2]


def test_logit_attribution_by_head() -> None:
    found = {}
    for kind, model in both().items():
        kernels = [b.attn.o.kernel[...] for b in both()["list"].blocks]
        matrices = [np.reshape(k, (2, 8, 16)) for k in kernels]
        by_head = logit_attribution(
            model,
            "blocks/*/attn/heads",
            residual=END,
            readout=model.readout,
            metric=lambda y: y[0, 3] - y[0, 2],
            writes={"blocks/*/attn/heads": lambda path, m=matrices: m[int(path.split("/")[1])]},
        )(TOKENS)
        whole = logit_attribution(
            model, "blocks/*/attn/out", residual=END, readout=model.readout, metric=lambda y: y[0, 3] - y[0, 2]
        )(TOKENS)
        assert {np.shape(x) for x in by_head.values()} == {(2,)}
        for i in range(LAYERS):
            heads, together = by_head[f"blocks/{i}/attn/heads"], whole[f"blocks/{i}/attn/out"]
            assert float(np.sum(heads)) == pytest.approx(float(together), abs=2e-4)
        found[kind] = np.stack([np.asarray(x) for x in by_head.values()])
    np.testing.assert_allclose(found["list"], found["scan"], atol=1e-4)


@pytest.mark.every(2)
def test_paths_and_edges_of_a_scan_are_those_of_a_list() -> None:
    models, senders = both(), ("blocks/{0..1}/attn/out", "blocks/1/mlp/out")
    receivers = ("blocks/{1..2}/attn_in",)
    a, b = (patch_paths(models[k], senders, receivers, metric=metric)((TOKENS,), (OTHERS,)) for k in ("list", "scan"))
    assert list(a.scores) == list(b.scores) and len(a.scores) > 2
    for pair in a.scores:
        np.testing.assert_allclose(a.scores[pair], b.scores[pair], rtol=1e-3, atol=1e-4)
    a, b = (
        attribute_edges(models[k], senders, receivers, baseline=(OTHERS,), metric=metric)(TOKENS)
        for k in ("list", "scan")
    )
    one, other = ({e[:2]: e.score for e in edges} for edges in (a, b))
    assert one.keys() == other.keys()
    np.testing.assert_allclose([one[k] for k in one], [other[k] for k in one], rtol=1e-3, atol=1e-5)
    assert a[:2].measured() == pytest.approx(b[:2].measured(), abs=1e-3)


def test_sweeps_over_what_modules_return() -> None:
    found = []
    for model in both().values():
        sites = ["blocks/*/out", "blocks/*/attn/out"]
        sweep = patch_sweep(model, *sites, metric=metric)((TOKENS,), (OTHERS,))
        _, records = sonde.capture(model, "blocks/2/out")(TOKENS)
        clean = records["blocks/2/out"].value
        by_edit = sonde.edit(model, {"blocks/2/out": lambda x, c=clean: x.at[:, 5].set(c[:, 5])})(OTHERS)
        np.testing.assert_allclose(sweep.scores["blocks/2/out"][5], metric(by_edit), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(sweep.corrupt, metric(model(OTHERS)), rtol=1e-5, atol=1e-6)
        found.append(sweep)
    a, b = found
    assert set(a.scores) == set(b.scores) and len(a.scores) == 2 * LAYERS
    for name in a.scores:
        np.testing.assert_allclose(a.scores[name], b.scores[name], rtol=1e-3, atol=1e-4)


@pytest.mark.every(2)
def test_single_layers_are_perturbed() -> None:
    model = both()["list"]
    gradient = jax.grad(lambda d: metric(sonde.edit(model, {"blocks/2/mlp/out": lambda x: x + d})(TOKENS)))(
        jnp.zeros((1, 6, 16))
    )
    for model in both().values():
        zeros = sonde.zero_perturbations(model, "blocks/2/mlp/out")(TOKENS)
        found = jax.grad(lambda p, m=model: metric(sonde.with_perturbations(m)(p, TOKENS)))(zeros)
        assert list(found) == ["blocks/2/mlp/out"]
        np.testing.assert_allclose(found["blocks/2/mlp/out"], gradient, rtol=1e-3, atol=1e-5)
        with pytest.raises(NoSuchSiteError, match="blocks/9/mlp/out"):
            sonde.with_perturbations(model)({"blocks/9/mlp/out": gradient}, TOKENS)


@pytest.mark.every(2)
def test_means_and_samples_of_single_heads() -> None:
    results = []
    for model in both().values():
        _, other = sonde.capture(model, "blocks/2/attn/heads")(OTHERS)
        sample = other["blocks/2/attn/heads"].value
        resampled = ablate(model, "blocks/2/attn/heads", units=1, unit_axis=-2, value={"blocks/2/attn/heads": sample})(
            TOKENS
        )
        by_edit = sonde.edit(model, {"blocks/2/attn/heads": lambda x, s=sample: x.at[..., 1, :].set(s[..., 1, :])})
        np.testing.assert_allclose(resampled, by_edit(TOKENS), rtol=1e-4, atol=1e-5)
        mean = ablate(model, "blocks/2/attn/heads", units=1, unit_axis=-2, value="mean")(TOKENS)
        averaged = sonde.edit(model, {"blocks/2/attn/heads": lambda x: x.at[..., 1, :].set(x[..., 1, :].mean((0, 1)))})
        np.testing.assert_allclose(mean, averaged(TOKENS), rtol=1e-4, atol=1e-5)
        results.append((resampled, mean))
    for a, b in zip(*results):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.every(2)
def test_integrated_gradients_between_two_runs() -> None:
    path, totals = "blocks/2/mlp/out", []
    for model in both().values():
        found = attribute(model, path, metric=metric, baseline=(OTHERS,), method="integrated", steps=64)(TOKENS)
        _, other = sonde.capture(model, path)(OTHERS)
        replaced = sonde.edit(model, {path: lambda x, o=other[path].value: o})(TOKENS)
        change = float(metric(model(TOKENS)) - metric(replaced))
        assert found.totals[path] == pytest.approx(change, rel=2e-2, abs=1e-3)
        totals.append(found.totals[path])
    assert totals[0] == pytest.approx(totals[1], rel=1e-3, abs=1e-5)
