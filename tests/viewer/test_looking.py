"""What the page shows is what the tools say."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.viewer.conftest import OTHERS, TOKENS, unpacked

import sonde
from sonde import models, nnx, tools
from sonde.viewer.language import decoder_axes, guessed_axes
from sonde.viewer.open import subject_of
from sonde.viewer.operations import Cancelled, Job, answer
from sonde.viewer.runs import Runs

ARGS = (jnp.asarray([TOKENS]),)
OTHER = " ".join(map(str, OTHERS))
EXPLAINED = {"position": -2, "token": 7, "against": 9}


def metric(logits: Any) -> Any:
    return logits[0, -2, 7] - logits[0, -2, 9]


def test_tokens_have_the_probabilities_of_the_model(ask: Callable[..., Any], model: models.Decoder) -> None:
    reading = ask("read", k=4)
    shares = np.asarray(jax.nn.softmax(model(*ARGS)[0]))
    assert [token["id"] for token in reading["tokens"]] == TOKENS
    assert reading["tokens"][0]["p"] is None
    for i, token in enumerate(reading["tokens"]):
        if i:
            assert token["p"] == pytest.approx(shares[i - 1, TOKENS[i]], rel=1e-4)
        best = np.argsort(-shares[i])[:4]
        assert [likely["id"] for likely in token["next"]] == best.tolist()
        assert [likely["p"] for likely in token["next"]] == pytest.approx(shares[i, best].tolist(), rel=1e-4)


def test_a_prompt_that_is_typed_is_run(ask: Callable[..., Any], model: models.Decoder) -> None:
    found = unpacked(ask("picture", path="logits", rows=1, columns=2, prompt=OTHER)["values"])
    np.testing.assert_allclose(found, model(jnp.asarray([OTHERS]))[0], rtol=1e-4, atol=1e-5)
    for prompt, text in (("", "no tokens"), ("one", "type token ids")):
        with pytest.raises(ValueError, match=text):
            ask("read", prompt=prompt)


def test_the_tree_lists_what_a_capture_records(ask: Callable[..., Any], model: models.Decoder) -> None:
    _, records = sonde.capture(model)(*ARGS)
    listed = ask("sites")["sites"]
    assert [site["path"] for site in listed] == list(records)
    for site, glance in zip(listed, ask("glances")["glances"], strict=True):
        value = np.asarray(records[site["path"]].value, np.float64)
        assert tuple(site["shape"]) == value.shape
        assert glance["rms"] == pytest.approx(math.sqrt((value**2).mean()), rel=1e-4), site["path"]
        assert len(site["axes"]) == value.ndim and max(glance["spark"]) == 15


def test_after_a_change_only_later_sites_have_moved(ask: Callable[..., Any]) -> None:
    change = {"kind": "ablate", "path": "blocks/1/mlp/out"}
    glances = ask("glances", changes=[change])["glances"]
    moved = {site["path"]: glance["moved"] for site, glance in zip(ask("sites")["sites"], glances, strict=True)}
    assert moved["blocks/1/mlp/out"] == 1
    assert all(x == 0 for path, x in moved.items() if path.startswith(("embedded", "blocks/0")))
    assert moved["blocks/2/out"] > 0 and moved["logits"] > 0


def test_a_site_has_the_statistics_of_summarize(ask: Callable[..., Any], model: models.Decoder) -> None:
    found = ask("site", path="blocks/1/mlp/hidden")
    (row,) = tools.summarize(model, "blocks/1/mlp/hidden")(*ARGS)
    for name in ("mean", "std", "min", "max", "norm"):
        assert found["statistics"][name] == pytest.approx(getattr(row.statistics, name), rel=1e-4), name
    assert sum(found["histogram"]["counts"]) == row.statistics.size
    with pytest.raises(KeyError, match="blocks/1/mlp/hidden"):
        ask("site", path="blocks/1/mlp/hiden")


@pytest.mark.parametrize(
    ("options", "cut"),
    [
        ({"rows": 1, "columns": 3, "index": [0, 0, 1, 0]}, lambda x: x[0, :, 1, :]),
        ({"rows": 3, "columns": 1, "index": [0, 0, 0, 0]}, lambda x: x[0, :, 0, :].T),
        ({"rows": 1, "columns": 3, "each": 2}, lambda x: x[0].transpose(1, 0, 2)),
        ({"rows": 2, "columns": 3, "each": 1}, lambda x: x[0]),
        ({"rows": -1, "columns": 3, "index": [0, 4, 1, 0]}, lambda x: x[0, 4, 1][None]),
    ],
)
def test_a_picture_is_the_part_that_was_asked_for(
    options: dict[str, Any], cut: Any, ask: Callable[..., Any], model: models.Decoder
) -> None:
    value = np.asarray(sonde.capture(model, "blocks/2/attn/heads")(*ARGS)[1]["blocks/2/attn/heads"].value)
    found = unpacked(ask("picture", path="blocks/2/attn/heads", **options)["values"])
    np.testing.assert_allclose(found, cut(value), rtol=1e-4, atol=1e-6)


def test_what_is_not_there_is_not_shown_as_something_else(ask: Callable[..., Any]) -> None:
    for index in ([0, 6, 0], [0, -1, 0]):
        with pytest.raises(ValueError, match="6 indices along length"):
            ask("picture", path="blocks/0/out", rows=-1, columns=2, index=index)
    for position in (6, -7):
        with pytest.raises(ValueError, match=f"6 tokens, and none at position {position}"):
            ask("attribution", explained={"position": position})
    for token in (-1, 40):  # JAX would take the nearest token that there is
        for explained in ({"token": token}, {"token": 1, "against": token}):
            with pytest.raises(ValueError, match=f"tokens 0 to 39, and no token {token}"):
                ask("attribution", explained=explained)
    with pytest.raises(ValueError, match="tokens 0 to 39, and no token 41"):
        ask("read", prompt="3 41 2")


def test_gradients_are_those_of_the_tool(ask: Callable[..., Any], model: models.Decoder) -> None:
    _, records = tools.site_gradients(model, "blocks/*/out", metric=metric)(*ARGS)
    for layer in range(3):
        found = ask("picture", path=f"blocks/{layer}/out", rows=1, columns=2, explained=EXPLAINED)
        expected = records[f"blocks/{layer}/out"].grad[0]
        np.testing.assert_allclose(unpacked(found["values"]), expected, rtol=1e-3, atol=1e-6)


def test_the_lens_is_that_of_the_tool(ask: Callable[..., Any], model: models.Decoder) -> None:
    found = ask("lens", k=3)
    lens = tools.logit_lens(model, "embedded", "blocks/*/out", readout=model.readout, k=3)(*ARGS)
    assert found["layers"] == list(lens) and found["layers"][0] == "embedded"
    for tokens, sure, reading in zip(found["tokens"], unpacked(found["sure"]), lens.values()):
        assert tokens == np.asarray(reading.tokens)[0].tolist()
        np.testing.assert_allclose(sure, reading.probabilities[0], rtol=1e-3)


def test_heads_are_scored_as_by_the_tool(ask: Callable[..., Any], model: models.Decoder) -> None:
    found = ask("heads")
    scores = tools.attention_heads(model, "blocks/*/attn/weights")(*ARGS)
    assert found["paths"] == list(scores.names)
    for kind in ("previous", "duplicate", "induction"):
        np.testing.assert_allclose(unpacked(found[kind]), scores[kind], rtol=1e-4, atol=1e-6)
    for path in ("blocks/1/attn/weights", "blocks/1/mlp/out"):
        answer = ask("attention", path=path)
        assert answer["layers"] == [f"blocks/{i}/attn/weights" for i in range(3)]
        assert answer["path"] == "blocks/1/attn/weights"
        expected = sonde.capture(model, answer["path"])(*ARGS)[1][answer["path"]].value[0]
        np.testing.assert_allclose(unpacked(answer["heads"]), expected, rtol=1e-4, atol=1e-6)


def test_contributions_add_up_to_the_explained_logits(ask: Callable[..., Any], model: models.Decoder) -> None:
    found = ask("attribution", explained=EXPLAINED)
    assert found["output"] == pytest.approx(float(metric(model(*ARGS))), rel=1e-3, abs=1e-5)
    assert sum(part["total"] for part in found["components"]) == pytest.approx(found["output"], rel=1e-2, abs=1e-4)
    heads = next(part for part in found["components"] if part["path"] == "blocks/1/attn/heads")
    assert unpacked(heads["units"]).shape == (2,)


def test_a_sweep_is_one_ablation_after_the_other(ask: Callable[..., Any], model: models.Decoder) -> None:
    found = ask("sweep", path="blocks/0/attn/heads", axis=2, explained=EXPLAINED)
    assert found["base"] == pytest.approx(float(metric(model(*ARGS))), rel=1e-3, abs=1e-5)
    scores = unpacked(found["values"])
    assert scores.shape == (3, 2) and np.isfinite(scores).all()
    for layer, head in ((0, 1), (2, 0)):
        one = tools.ablate(model, found["layers"][layer], units=head, unit_axis=-2)
        assert scores[layer, head] == pytest.approx(float(metric(one(*ARGS))), rel=1e-3, abs=1e-5)


def test_a_patching_sweep_restores_what_patch_sweep_restores(ask: Callable[..., Any], model: models.Decoder) -> None:
    options = {"kind": "patch", "other": " ".join(map(str, TOKENS)), "axis": 1, "explained": EXPLAINED}
    found = unpacked(ask("sweep", path="blocks/0/out", prompt=OTHER, **options)["values"])
    sweep = tools.patch_sweep(model, "blocks/*/out", metric=metric)(ARGS, (jnp.asarray([OTHERS]),))
    np.testing.assert_allclose(found, np.stack([np.asarray(x) for x in sweep.scores.values()]), rtol=1e-3, atol=1e-4)


def test_a_sweep_can_be_cancelled(runs: Runs) -> None:
    news: list[Any] = []
    stop = threading.Event()

    def say(told: Any) -> None:
        news.append(told)
        if told["done"] == 2:
            stop.set()

    with pytest.raises(Cancelled):
        answer(Job({"small": runs}, say, stop), "sweep", {"subject": "small", "path": "blocks/0/attn/heads", "axis": 2})
    assert [told["done"] for told in news] == [0, 1, 2] and {told["total"] for told in news} == {6}


def test_what_does_not_fit_into_the_memory_is_recorded_when_it_is_clicked(model: models.Decoder) -> None:
    everything, little = (Runs(subject_of(model, ARGS), memory) for memory in (10**8, 9_000))
    assert not little.fits(None) and everything.fits(None)
    assert little.whole_run(None).parts == []
    for path in ("blocks/1/out", "blocks/2/out", "embedded", "blocks/1/mlp/out", "logits"):
        assert little.bytes <= little.memory
        np.testing.assert_allclose(little.value(None, (), path), everything.value(None, (), path), rtol=1e-5, atol=1e-6)
    job = Job({"m": little})
    assert answer(job, "sites", {"subject": "m"})["complete"] is False
    tiny, weights = Runs(subject_of(model, ARGS), 500), "blocks/1/attn/weights"  # all layers would be too much
    np.testing.assert_allclose(tiny.value(None, (), weights), everything.value(None, (), weights), rtol=1e-5)
    assert [*tiny.run(None).parts[0]] == [weights]


def test_the_first_run_records_what_is_shown_and_later_ones_everything(model: models.Decoder) -> None:
    runs = Runs(subject_of(model, ARGS))
    job = Job({"m": runs})
    first = answer(job, "sites", {"subject": "m"})["first"]
    assert first == "blocks/0/attn/weights" and runs.bytes == 0
    answer(job, "site", {"subject": "m", "path": first})
    answer(job, "read", {"subject": "m"})
    shown = runs.run(None)
    assert list(shown.parts[0]) == [f"blocks/{i}/attn/weights" for i in range(3)] and not shown.is_whole
    np.testing.assert_allclose(shown.result, model(*ARGS), rtol=1e-4, atol=1e-5)
    glances = answer(job, "glances", {"subject": "m"})["glances"]
    assert all("rms" in glance for glance in glances) and runs.run(None).is_whole
    assert runs.run(OTHER).is_whole  # the program is compiled: the next prompt is recorded at once
    assert not runs.run("1 2").is_whole  # it is not for another length


def test_runs_are_forgotten_when_the_memory_is_full(model: models.Decoder) -> None:
    runs = Runs(subject_of(model, ARGS), 100_000)
    for first in range(8):
        runs.run(f"{first} 2 3 4 2 3")
    assert runs.bytes <= 100_000
    again = runs.value("0 2 3 4 2 3", (), "logits")
    np.testing.assert_allclose(again, model(jnp.asarray([[0, 2, 3, 4, 2, 3]])), rtol=1e-4, atol=1e-5)


def test_a_program_that_decides_by_numbers_is_run_as_it_is() -> None:
    def program(x: Any) -> Any:
        h = sonde.sow(x * 2, "h")
        return sonde.sow(h + 1, "big" if float(h.sum()) > 1 else "small").sum()

    runs = Runs(subject_of(program, (jnp.ones(3),)))
    job = Job({"program": runs})
    assert [site["path"] for site in answer(job, "sites", {"subject": "program"})["sites"]] == ["h", "big"]
    change = {"kind": "ablate", "path": "h"}
    found = answer(job, "read", {"subject": "program", "changes": [change]})
    assert found["result"] == ["result: 3"]


def test_a_run_leaves_the_model_as_it_was() -> None:
    norm = nnx.BatchNorm(3, rngs=nnx.Rngs(0))
    before = np.asarray(norm.mean[...])
    x = jnp.arange(6.0).reshape(2, 3)
    result = Runs(subject_of(norm, (x,))).run(None).result
    np.testing.assert_array_equal(np.asarray(norm.mean[...]), before)
    # What a function reads besides its arguments cannot be copied: it runs as it is.
    np.testing.assert_allclose(Runs(subject_of(lambda x: norm(x), (x,))).run(None).result, result, rtol=1e-5)


def test_a_program_that_returns_a_number_is_explained_by_it() -> None:
    def loss(w: Any, x: Any) -> Any:
        return jnp.sum(sonde.sow(jnp.tanh(x @ w), "h") ** 2)

    args = (jnp.eye(3) / 2, jnp.arange(6.0).reshape(2, 3))
    job = Job({"loss": Runs(subject_of(loss, args))})
    found = answer(job, "picture", {"subject": "loss", "path": "h", "rows": 0, "columns": 1, "explained": {}})
    np.testing.assert_allclose(unpacked(found["values"]), 2 * jnp.tanh(args[1] @ args[0]), rtol=1e-5)
    assert "lens" not in answer(job, "hello", {})["subjects"][0].get("views", ())
    with pytest.raises(ValueError, match="needs the output layer"):
        answer(job, "lens", {"subject": "loss"})


def test_findings_are_those_of_the_report(ask: Callable[..., Any], model: models.Decoder) -> None:
    found, report = ask("findings"), sonde.report.examine(model)(*ARGS).to_json()
    assert [f["text"] for f in found["findings"]] == [f["text"] for f in report["findings"]]
    assert found["checked"] == report["checked"] and len(found["source"]) > 2


def test_two_programs_are_compared_as_by_the_tool() -> None:
    def program(x: Any, factor: float = 2.0) -> Any:
        h = sonde.sow(x + 1, "h")
        return sonde.sow(h * factor, "scaled").sum()

    def other(x: Any) -> Any:
        return program(x, 2.5)

    args = (jnp.arange(3.0),)
    job = Job({"a": Runs(subject_of(program, args)), "b": Runs(subject_of(other, args))})
    found = answer(job, "comparison", {"subject": "a", "other": "b"})
    expected = tools.compare(program, other, grads=False)(*args)
    assert found["first"]["path"] == "scaled" == expected.first.path
    assert [drift["differs"] for drift in found["drifts"]] == [d.differs for d in (*expected.drifts, *expected.results)]
    assert answer(job, "comparison", {"subject": "a", "other": "a"})["first"] is None
    names: dict[str, Any] = {"f": program, "g": other, "args": args}
    exec(found["code"].replace("print(", "copied = ("), names)
    assert names["copied"].first.path == "scaled"


def test_names_of_axes() -> None:
    assert decoder_axes("blocks/7/attn/q") == ("batch", "length", "heads", "depth")
    assert decoder_axes("blocks/7/attn/unknown") == ()
    assert guessed_axes((), 5) == () and guessed_axes((3,), 5) == ("units",)
    assert guessed_axes((1, 4, 5, 8), 5) == ("batch", "heads", "length", "units")
