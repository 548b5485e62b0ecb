"""Generation gives the numbers of the model without a cache, and captures and edits see every step of it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers as inner
from tests.models.cases import apart, oracle, write_checkpoint

import sonde
from sonde import models, nnx
from sonde.models.sampling import Sampling, choose, considered

PROMPTS = [[5, 9, 14, 3, 22], [7, 31]]
NEW = 7


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    made = tmp_path_factory.mktemp("checkpoints")
    return {name: write_checkpoint(made / name, oracle(name)) for name in ("gemma3", "gpt2", "llama")}


_masked = nnx.jit(lambda model, tokens, mask: model(tokens, mask=mask))


def by_hand(model: Any, prompt: list[int], new: int) -> list[int]:
    """The likeliest continuation, computed without a cache."""
    tokens = np.zeros((1, max(map(len, PROMPTS)) + new), np.int32)  # one shape, one compilation
    tokens[0, : len(prompt)] = prompt
    for at in range(len(prompt), len(prompt) + new):
        mask = np.arange(tokens.shape[1])[None] < at
        tokens[0, at] = np.asarray(_masked(model, tokens, mask))[0, at - 1].argmax()
    return tokens[0, len(prompt) : len(prompt) + new].tolist()


@pytest.mark.parametrize(
    ("name", "layers"),
    [pytest.param("gemma3", "list", marks=pytest.mark.thorough), ("gemma3", "scan"), ("gpt2", "list")],
)
def test_a_cache_changes_nothing(name: str, layers: Any, folders: dict[str, Any]) -> None:
    model = models.load(folders[name], layers=layers)
    plain = models.generate(model, PROMPTS, max_new_tokens=NEW, stop=[])
    expected = [by_hand(model, prompt, NEW) for prompt in PROMPTS]
    assert plain.tokens.tolist() == expected
    seen, records = sonde.capture(models.generate)(model, PROMPTS, max_new_tokens=NEW, stop=[])
    assert seen.tokens.tolist() == expected
    # What was seen at every site is what the whole texts give there, row by row.
    _, whole = sonde.capture(nnx.jit(lambda model, tokens: model(tokens)))(
        model, jnp.asarray([[*PROMPTS[0], *expected[0]]])
    )
    length = len(PROMPTS[0])
    for site in ("embedded", "blocks/1/attn/q_rotated", "blocks/1/out"):
        if site not in whole:
            continue  # GPT-2 turns nothing
        of_prompt, of_steps = records[site].values
        full = np.asarray(whole[site].value)
        assert of_steps.shape[0] == NEW - 1
        assert apart(of_prompt[0], full[0, :length]) < 1e-5
        assert apart(of_steps[:, 0, 0], full[0, length : length + NEW - 1]) < 1e-5


@pytest.mark.every(2)
@pytest.mark.parametrize(("name", "layers"), [("llama_dynamic", "scan"), ("phi3", "list")])
def test_frequencies_that_change_as_a_text_grows(name: str, layers: Any, tmp_path: Any) -> None:
    """Every step is as if the whole text were read anew, and the other rows of the batch do not matter."""
    model = models.load(write_checkpoint(tmp_path, oracle(name)), layers=layers)
    expected = [by_hand(model, prompt, NEW) for prompt in PROMPTS]
    assert models.generate(model, PROMPTS, max_new_tokens=NEW, stop=[]).tokens.tolist() == expected


def test_compiled_once(folders: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.load(folders["llama"])
    traced = []
    extend = type(model).extend
    monkeypatch.setattr(type(model), "extend", lambda *args, **options: traced.append(1) or extend(*args, **options))
    models.generate(model, PROMPTS, max_new_tokens=3, temperature=0.5, top_k=4, top_p=0.7)
    assert len(traced) == 2  # the prompt, and the body of the loop
    models.generate(model, [[1, 2, 3, 4, 6], [3]], max_new_tokens=3, temperature=0.9, top_k=9, top_p=0.2, seed=5)
    assert len(traced) == 2


def test_stop_tokens(folders: dict[str, Any]) -> None:
    model = models.load(folders["llama"])
    free = models.generate(model, PROMPTS, max_new_tokens=NEW, stop=[]).tokens
    end = int(free[0, 2])
    stopped = models.generate(model, PROMPTS, max_new_tokens=NEW, stop=[end])
    for row, length, whole in zip(stopped.tokens.tolist(), stopped.lengths.tolist(), free.tolist()):
        expected = whole.index(end) + 1 if end in whole else NEW
        assert length == expected
        assert row == whole[:expected] + [0] * (NEW - expected)
    seen, _ = sonde.capture(models.generate)(model, PROMPTS, max_new_tokens=NEW, stop=[end])
    assert seen.tokens.tolist() == stopped.tokens.tolist()
    assert seen.lengths.tolist() == stopped.lengths.tolist()


def test_steering_from_a_token_on(folders: dict[str, Any]) -> None:
    push = 3 * np.random.default_rng(1).normal(size=16).astype(np.float32)
    answers = {}
    for layers in ("list", "scan"):
        model = models.load(folders["llama"], layers=layers)
        edits = {"blocks/0/out": models.from_token(lambda x: x + push, 2)}
        (steered, records) = sonde.capture(sonde.edit(models.generate, edits), "logits")(
            model, PROMPTS, max_new_tokens=NEW, stop=[]
        )
        free, plain = sonde.capture(models.generate, "logits")(model, PROMPTS, max_new_tokens=NEW, stop=[])
        before, after = plain["logits"].values[1], records["logits"].values[1]
        # Generated token 2 is the first that is read differently, so token 3 is the first that may differ.
        assert steered.tokens[:, :3].tolist() == free.tokens[:, :3].tolist()
        assert apart(after[:2], before[:2]) < 1e-6
        assert apart(after[2], before[2]) > 0.05
        answers[layers] = steered.tokens.tolist()
    assert answers["list"] == answers["scan"]


def test_streaming(folders: dict[str, Any]) -> None:
    vocabulary = {f"w{i}": i for i in range(40)}
    words = inner.Tokenizer(inner.models.WordLevel(vocabulary, unk_token="w0"))
    words.pre_tokenizer = inner.pre_tokenizers.Whitespace()
    model = models.load(folders["llama"])
    model.tokenizer = models.Tokenizer(words)
    heard: list[list[str]] = []
    whole = models.generate(model, ["w5 w9 w14", "w7"], max_new_tokens=NEW)
    streamed = models.generate(model, ["w5 w9 w14", "w7"], max_new_tokens=NEW, stream=heard.append)
    assert streamed.tokens.tolist() == whole.tokens.tolist()
    assert ["".join(texts) for texts in zip(*heard)] == whole.texts
    assert whole.pieces[1][:2] == ["w7", f"w{whole.tokens[1, 0]}"]
    assert models.generate(model, "w5 w9 w14", max_new_tokens=NEW).texts == whole.texts[:1]
    assert str(whole) == "\n".join(whole.texts)
    with pytest.raises(ValueError, match="no chat template"):
        models.generate(model, [{"role": "user", "content": "w1"}])


def test_sampling_considers_the_right_tokens() -> None:
    logits = jax.random.normal(jax.random.key(0), (64, 20)) * 2
    for temperature, k, p in ((0.7, 5, None), (1.3, None, 0.6), (1.0, 4, 0.9), (0.5, 100, 1.0)):
        kept = np.isfinite(considered(logits, Sampling.of(temperature, k, p)))
        for row, numbers in zip(kept, np.asarray(logits, np.float64)):
            shares = np.exp(numbers / temperature)
            order = np.argsort(-shares)
            allowed = list(order[:k])
            shares = shares / shares[allowed].sum()
            ends = np.cumsum(shares[allowed])
            count = len(allowed) if p is None or p == 1 else int(np.searchsorted(ends, p) + 1)
            assert set(np.flatnonzero(row)) == set(allowed[:count])


def test_sampling_follows_the_probabilities() -> None:
    logits = jnp.array([0.0, 1.0, 2.0, -1.0])
    drawn = choose(jnp.tile(logits, (20000, 1)), Sampling.of(0.8, None, None), jax.random.key(1))
    found = np.bincount(np.asarray(drawn), minlength=4) / 20000
    assert np.abs(found - np.asarray(jax.nn.softmax(logits / 0.8))).max() < 0.02


def test_arguments_out_of_range(folders: dict[str, Any]) -> None:
    model = models.load(folders["gpt2"])
    with pytest.raises(ValueError, match="need 35 positions; the model has 32"):
        models.generate(model, PROMPTS, max_new_tokens=30)
    with pytest.raises(ValueError, match="prompt 1 has no tokens"):
        models.generate(model, [[1], []])
    with pytest.raises(ValueError, match="no tokenizer"):
        models.generate(model, "hello")
    for options in ({"temperature": -1.0}, {"temperature": 1.0, "top_k": 0}, {"temperature": 1.0, "top_p": 0.0}):
        with pytest.raises(ValueError, match="must be"):
            models.generate(model, PROMPTS, max_new_tokens=2, **options)
