"""A store and its dictionaries: what the page shows is what the store holds and what the tools say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from tests.viewer.conftest import unpacked

import sonde
from sonde import dictionaries, models, nnx
from sonde.viewer.conversation import answered
from sonde.viewer.open import stored_of, subject_of
from sonde.viewer.operations import Job, answer
from sonde.viewer.runs import Runs

OUT = "blocks/1/out"
TEXTS = np.random.default_rng(0).integers(0, 40, (9, 10))


@pytest.fixture(scope="module")
def dictionary() -> dictionaries.Dictionary:
    return dictionaries.Dictionary(16, 24, activation="topk", k=4, rngs=nnx.Rngs(0))


@pytest.fixture(scope="module", params=["texts", "rows"])
def ask(
    request: Any, tmp_path_factory: pytest.TempPathFactory, model: models.Decoder, dictionary: dictionaries.Dictionary
) -> Callable[..., Any]:
    """Asks about a store of texts by positions, or of single positions."""
    folder = tmp_path_factory.mktemp("store")
    keep = {"keep": lambda tokens: jnp.ones(tokens.shape, bool)} if request.param == "rows" else {}
    keys = {"texts": lambda t: {"tokens": t}, "rows": lambda t: {"tokens": t}}[request.param]
    kept = sonde.store.harvest(model, [jnp.asarray(TEXTS)], folder, OUT, keys=keys, progress=False, **keep)
    subject = subject_of(model, dictionaries={OUT: dictionary}, title="model")
    stored = stored_of(kept, {OUT: dictionary}, subject)
    return lambda name, **data: answer(Job({"store": stored}), name, {"subject": "store", **data})


def activations(model: models.Decoder, dictionary: dictionaries.Dictionary) -> np.ndarray:
    value = sonde.capture(model, OUT)(jnp.asarray(TEXTS))[1][OUT].value
    return np.asarray(dictionary.encode(value)).reshape(-1, 24)


def test_features_are_counted_over_all_positions(
    ask: Callable[..., Any], model: models.Decoder, dictionary: dictionaries.Dictionary
) -> None:
    acts = activations(model, dictionary)
    found = ask("features", path=OUT)
    assert found["positions"] == len(acts)  # the rest after whole texts of rows, too
    np.testing.assert_allclose(unpacked(found["density"]), (acts > 0).mean(0), rtol=1e-5)
    np.testing.assert_allclose(unpacked(found["highest"]), acts.max(0), rtol=1e-4)
    assert found["dead"] == int((acts.max(0) == 0).sum())


def test_the_examples_of_a_feature_are_its_highest_values_with_their_tokens(
    ask: Callable[..., Any], model: models.Decoder, dictionary: dictionaries.Dictionary
) -> None:
    acts = activations(model, dictionary)
    index = int(acts.mean(0).argmax())
    found = ask("feature", path=OUT, index=index)
    best = np.sort(acts[:, index])[::-1][: len(found["examples"])]
    np.testing.assert_allclose([x["value"] for x in found["examples"]], best, rtol=1e-4)
    flat = TEXTS.reshape(-1)
    for example in found["examples"]:
        at = example["position"] - example["first"]
        assert example["values"][at] == pytest.approx(example["value"], rel=1e-4)
        (place,) = np.flatnonzero(np.isclose(acts[:, index], example["value"], rtol=1e-4))
        assert example["tokens"][at] == str(flat[place])
    counts = found["histogram"]["counts"]
    assert sum(counts) == int((acts[:, index] > 0).sum())
    rows = np.asarray(dictionary.decoder[...])
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    for other, cosine in found["neighbors"]:
        assert cosine == pytest.approx(float(rows[index] @ rows[other]), abs=1e-4)
    with pytest.raises(ValueError, match="features 0 to 23, not 24"):
        ask("feature", path=OUT, index=24)


def test_effects_on_logits_are_those_of_the_output_layer(
    ask: Callable[..., Any], model: models.Decoder, dictionary: dictionaries.Dictionary
) -> None:
    table = np.asarray(model.embed.embedding[...]) if model.head is None else np.asarray(model.head.kernel[...]).T
    effects = table @ (np.asarray(dictionary.decoder[...])[5] * np.asarray(model.norm.scale[...]))
    effects -= effects.mean()
    found = ask("feature", path=OUT, index=5)["effects"]
    best = np.argsort(-effects)[:10]
    assert [token for token, _ in found["raised"]] == [str(i) for i in best]
    np.testing.assert_allclose([by for _, by in found["raised"]], effects[best], rtol=1e-3)
    assert found["lowered"][0][0] == str(int(effects.argmin()))


def test_a_search_finds_features_by_the_tokens_of_their_examples(
    ask: Callable[..., Any], model: models.Decoder, dictionary: dictionaries.Dictionary
) -> None:
    acts = activations(model, dictionary)
    index = int(acts.max(0).argmax())
    token = str(TEXTS.reshape(-1)[acts[:, index].argmax()])
    found = ask("find_features", path=OUT, text=token)
    assert index in found["features"] and found["of"] >= len(found["features"])
    assert ask("find_features", path=OUT, text="no such text") == {"features": [], "of": 0}


def test_features_are_exported_as_neuronpedia_takes_them(ask: Callable[..., Any]) -> None:
    found = ask("neuronpedia", path=OUT, indices=[3, 5])
    assert (found["model_id"], found["layer"], found["sae_set"]) == ("model", 1, OUT)
    assert [x["feature_index"] for x in found["features"]] == [3, 5]
    for one in found["features"]:
        assert 0 <= one["frac_nonzero"] <= 1 and len(one["pos_str"]) == len(one["pos_values"]) == 10
        for example in one["activations"]:
            assert len(example["tokens"]) == len(example["values"]) and max(example["values"]) > 0


def test_rows_are_those_of_the_store(ask: Callable[..., Any], model: models.Decoder) -> None:
    value = np.asarray(sonde.capture(model, OUT)(jnp.asarray(TEXTS))[1][OUT].value)
    found = ask("rows", path=OUT, first=2, count=4)
    expected = value[2] if found["is_text"] else value.reshape(-1, 16)[2:6]
    np.testing.assert_allclose(unpacked(found["values"]), expected, rtol=1e-4, atol=1e-5)
    tokens = TEXTS[2] if found["is_text"] else TEXTS.reshape(-1)[2:6]
    assert found["tokens"] == [str(token) for token in tokens]
    with pytest.raises(KeyError, match=OUT):
        ask("rows", path="blocks/1/oup")


def test_a_damaged_store_is_told(tmp_path: Path, model: models.Decoder, dictionary: dictionaries.Dictionary) -> None:
    kept = sonde.store.harvest(model, [jnp.asarray(TEXTS)], tmp_path / "s", OUT, progress=False)
    for file in (tmp_path / "s").rglob("c/**/*"):
        if file.is_file():
            file.write_bytes(b"\0" * file.stat().st_size)
    stored = stored_of(kept, {OUT: dictionary})
    told = answered(Job({"s": stored}), "rows", {"subject": "s", "path": OUT})
    assert told["error"]["kind"] == "StoreError", told


def test_a_dictionary_of_another_width_is_refused(tmp_path: Path, model: models.Decoder) -> None:
    kept = sonde.store.harvest(model, [jnp.asarray(TEXTS)], tmp_path / "s", OUT, progress=False)
    wide = dictionaries.Dictionary(8, 24, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="reads 8 numbers, the store has 16"):
        stored_of(kept, {OUT: wide})


@pytest.mark.every(2)
def test_features_are_sites_of_the_program_and_change_it(
    model: models.Decoder, dictionary: dictionaries.Dictionary
) -> None:
    args = (jnp.asarray(TEXTS[:1]),)
    runs = Runs(subject_of(model, args, dictionaries={OUT: dictionary}, title="m"))
    ask = lambda name, **data: answer(Job({"m": runs}), name, {"subject": "m", **data})
    np.testing.assert_allclose(runs.run(None).result, model(*args), rtol=1e-4, atol=1e-5)
    spliced = dictionaries.splice(model, {OUT: dictionary})
    off = {"kind": "ablate", "path": f"{OUT}/error"}
    changed = unpacked(ask("picture", path="logits", rows=1, columns=2, changes=[off])["values"])
    np.testing.assert_allclose(changed, spliced(*args)[0], rtol=1e-3, atol=1e-4)
    steer = {"kind": "add", "path": f"{OUT}/features", "chosen": {"2": [7]}, "factor": 3.0}
    changed = unpacked(ask("picture", path="logits", rows=1, columns=2, changes=[steer])["values"])
    row = 3.0 * dictionary.decoder[7]
    np.testing.assert_allclose(changed, sonde.edit(model, {OUT: lambda x: x + row})(*args)[0], rtol=1e-3, atol=1e-4)
