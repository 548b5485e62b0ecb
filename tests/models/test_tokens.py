"""Tokenizers: of folders and of GGUF files, padding, chats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from sonde.errors import ModelFileError
from sonde.models import Tokenizer
from sonde.models.files.gguf_tokens import tokenizer_of

TEMPLATE = """{% for m in messages %}{% if m.role == 'bad' %}{{ raise_exception('no') }}{% endif %}
<|{{ m.role }}|>{{ m.content }}{{ eos_token }}
{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""


def byte_level(tmp_path: Path) -> Any:
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator(["the cat sat on the mat", "the dog is naïve"] * 5, trainer)
    inner.save(str(tmp_path / "tokenizer.json"))
    return inner


def test_a_folder(tmp_path: Path) -> None:
    inner = byte_level(tmp_path)
    inner.enable_padding(length=64)  # as sentence encoders are stored
    inner.save(str(tmp_path / "tokenizer.json"))
    config = {"eos_token": {"content": "<|end|>"}, "chat_template": TEMPLATE}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7]}))
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer is not None and tokenizer.stop == (7, 0)
    for text in ("the cat", "a naïve 你好 mat"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    batch = tokenizer.batch(["the cat sat", "the"])
    assert batch.mask.sum(1).tolist() == [len(tokenizer.encode("the cat sat")), 1]
    assert "".join(tokenizer.pieces(tokenizer.encode("the cat sat"))) == "the cat sat"
    chat = tokenizer.chat([{"role": "user", "content": "Hi"}])
    assert chat == "<|user|>Hi<|end|>\n<|assistant|>"
    assert tokenizer.chat("Hi", reply=False) == "<|user|>Hi<|end|>\n"
    with pytest.raises(ValueError, match="refuses these messages: no"):
        tokenizer.chat([{"role": "bad", "content": ""}])
    with pytest.raises(ValueError, match=r"must be one token, but is \d+"):
        tokenizer.one("cat dog")
    tokenizer.save(tmp_path)
    again = Tokenizer.from_folder(tmp_path)
    assert again is not None and again.chat("Hi") == tokenizer.chat("Hi")


def test_a_gguf_file_gives_the_tokens_of_the_folder(tmp_path: Path) -> None:
    inner = byte_level(tmp_path)
    model = json.loads(inner.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]]
    fields: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.token_type": [3] + [1] * (len(tokens) - 1),
        "tokenizer.ggml.eos_token_id": 0,
    }
    found = tokenizer_of(fields)
    assert found is not None and found.stop == (0,)
    for text in ("the cat sat", "dogs, 12 of them\n naïve", "the end<|end|>"):
        assert found.encode(text) == inner.encode(text).ids
    digits = tokenizer_of(fields | {"tokenizer.ggml.pre": "smollm"})
    assert digits is not None and len(digits.encode("1234")) == 4
    with pytest.raises(ModelFileError, match="unknown way of splitting texts, 'other'"):
        tokenizer_of(fields | {"tokenizer.ggml.pre": "other"})
    with pytest.raises(ModelFileError, match="unknown tokenizer 'other'"):
        tokenizer_of(fields | {"tokenizer.ggml.model": "other"})
    assert tokenizer_of({}) is None


def test_sentence_pieces_of_a_gguf_file() -> None:
    pieces = ["<unk>", "<s>", "</s>", "<0x41>", "▁", "a", "b", "▁a", "ab", "▁ab"]
    fields = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": [0.0, 0.0, 0.0, 0.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0],
        "tokenizer.ggml.token_type": [2, 3, 3, 6, 1, 1, 1, 1, 1, 1],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    tokenizer = tokenizer_of(fields)
    assert tokenizer is not None
    assert [pieces[i] for i in tokenizer.encode("ab a")] == ["<s>", "▁ab", "▁a"]
    assert tokenizer.decode(tokenizer.encode("ab a")) == "ab a"
    assert pieces[tokenizer.encode("A")[-1]] == "<0x41>"


def test_word_pieces_of_a_gguf_file() -> None:
    """The tokens of BERT's own tokenizer, rebuilt from a file in which beginnings of words are marked."""
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "the",
        "cat",
        "##s",
        "sat",
        "un",
        "##happy",
        "##ly",
        ".",
        "na",
    ]
    words += ["##ive", "##ï", "c", "##at"]
    own = tokenizers.Tokenizer(tokenizers.models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    own.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    own.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    marked = [w if w.startswith("[") else w[2:] if w.startswith("##") else "▁" + w for w in words]
    fields = {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": marked,
        "tokenizer.ggml.token_type": [3] * 5 + [1] * (len(words) - 5),
        "tokenizer.ggml.unknown_token_id": 1,
        "tokenizer.ggml.cls_token_id": 2,
        "tokenizer.ggml.seperator_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.mask_token_id": 4,
    }
    found = tokenizer_of(fields)
    assert found is not None and found.pad_id == 0 and found.special["mask_token"] == "[MASK]"
    for text in ("The cats sat.", "unhappily naïve dog", "[MASK] sat"):
        inside = found.encode(text, special=False)
        expected = [4, *own.encode("sat").ids] if "[MASK]" in text else own.encode(text).ids
        assert inside == expected
        assert found.encode(text) == [2, *inside, 3]
    assert found.decode(found.encode("The cats sat.")) == "the cats sat."
