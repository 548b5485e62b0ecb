"""Damaged and hostile files of models: a ModelFileError that names what is wrong, or the model; never another error."""

from __future__ import annotations

import json
import os
import random
import resource
import struct
import time
from pathlib import Path

import numpy as np
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tests.models.cases import CASES, oracle, write_checkpoint
from tests.models.gguf_files import ARCHITECTURES, write_gguf
from tests.untrusted import flipped, groups, mutated, quickly

from sonde import models
from sonde.errors import ModelFileError
from sonde.models.architectures import read_config
from sonde.models.files import gguf as gguf_files
from sonde.models.files.chat_template import render
from sonde.models.files.safetensors import read_file, read_folder
from sonde.models.files.untrusted import reading
from sonde.models.tokens import Tokenizer

NAMES = sorted(CASES)


@pytest.mark.parametrize("numbers", groups(60, 1000))
def test_odd_configs(numbers):
    for seed in numbers:
        rng = random.Random(seed)
        case = NAMES[seed % len(NAMES)]
        raw = mutated(oracle(case)["config"], rng)
        start = time.monotonic()
        try:
            architecture, config = read_config(raw)
        except ModelFileError:
            continue
        assert architecture.rows(config)
        quickly(start)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    names = ("llama", "gpt2", "bert", "vit", "clip")
    folder = tmp_path_factory.mktemp("models")
    return {name: write_checkpoint(folder / name, oracle(name)) for name in names if name in CASES}


@pytest.mark.parametrize("numbers", groups(8, 200))
def test_odd_configs_of_whole_folders(folders, numbers, tmp_path):
    for seed in numbers:
        rng = random.Random(seed)
        folder = folders[sorted(folders)[seed % len(folders)]]
        here = tmp_path / "model"
        here.mkdir(exist_ok=True)
        (here / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
        raw = mutated(json.loads((folder / "config.json").read_text()), rng)
        (here / "config.json").write_text(json.dumps(raw))
        start = time.monotonic()
        try:
            models.load(here)
        except ModelFileError as error:
            assert str(here) in str(error)
        quickly(start)


@pytest.mark.parametrize("numbers", groups(80, 1000))
def test_odd_headers(folders, numbers, tmp_path):
    good = (folders["llama"] / "model.safetensors").read_bytes()
    size = int.from_bytes(good[:8], "little")
    header = json.loads(good[8 : 8 + size])
    arrays = {
        name: np.array(tensor.read()) for name, tensor in read_file(folders["llama"] / "model.safetensors").items()
    }
    for seed in numbers:
        rng = random.Random(seed)
        file = tmp_path / "odd.safetensors"
        if seed % 2:
            text = json.dumps(mutated(header, rng)).encode()
            file.write_bytes(len(text).to_bytes(8, "little") + text + good[8 + size :])
        else:
            file.write_bytes(flipped(good, rng, 0, 8 + size))
        start = time.monotonic()
        try:
            tensors = read_file(file)
        except ModelFileError as error:
            assert str(file) in str(error)
            continue
        total = 0
        for tensor in tensors.values():
            total += tensor.read().nbytes
            assert tensor.read().shape == tensor.shape
        assert total <= file.stat().st_size
        if seed % 2 and all(name in arrays for name in tensors):
            assert all(
                tensor.shape == arrays[name].shape or tensor.bytes == arrays[name].nbytes
                for name, tensor in tensors.items()
            )
        quickly(start)


@pytest.fixture(scope="module")
def gguf_bytes(tmp_path_factory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("gguf")
    made = {}
    for name in ("llama", "gpt2", "gemma3"):
        assert name in ARCHITECTURES
        write_gguf(folder / f"{name}.gguf", name, oracle(name))
        made[name] = (folder / f"{name}.gguf").read_bytes()
    return made


@pytest.mark.parametrize("numbers", groups(60, 2000))
def test_odd_gguf_files(gguf_bytes, numbers, tmp_path):
    for seed in numbers:
        rng = random.Random(seed)
        good = gguf_bytes[sorted(gguf_bytes)[seed % len(gguf_bytes)]]
        file = tmp_path / "odd.gguf"
        end = good.index(b"output_norm.weight") if seed % 2 else 600
        file.write_bytes(flipped(good, rng, 4, end))
        start = time.monotonic()
        try:
            raw, tensors, _ = gguf_files.read_file(file)
            with reading(file):  # as `models.load` does
                read_config(raw)
            for tensor in tensors.values():
                assert tensor.read().shape == tensor.shape
        except ModelFileError as error:
            assert str(file) in str(error)
        quickly(start)


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/etc/passwd", "a/../../outside.safetensors", "C:\\x", "\\\\x\\y", "", "a\0b", 3]
)
def test_an_index_cannot_name_files_elsewhere(folders, tmp_path, name):
    folder = tmp_path / "model"
    folder.mkdir()
    for outside in (tmp_path / "outside.safetensors", folder / "inside.safetensors"):
        outside.write_bytes((folders["llama"] / "model.safetensors").read_bytes())
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(read_file(tmp_path / "outside.safetensors"), name)}))
    with pytest.raises(ModelFileError, match=r"index\.json names .*"):
        read_folder(folder)
    for odd in ([], {}, {"weight_map": []}, {"weight_map": {"a": None}}, "x", None):
        index.write_text(json.dumps(odd))
        with pytest.raises(ModelFileError, match=r"index\.json"):
            read_folder(folder)


def test_a_linked_file_is_in_the_folder(folders, tmp_path):
    (tmp_path / "blob").write_bytes((folders["llama"] / "model.safetensors").read_bytes())
    folder = tmp_path / "snapshot"
    folder.mkdir()
    (folder / "part.safetensors").symlink_to(tmp_path / "blob")
    weights = dict.fromkeys(read_file(tmp_path / "blob"), "part.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    assert set(read_folder(folder)) == set(weights)


def test_a_config_with_billions_of_layers_takes_no_memory(folders, tmp_path):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for layers, said in (
        (2**31, "'num_hidden_layers' of the config must be a whole number"),
        (9999, "only .* tensors"),
    ):
        raw = json.loads((folders["llama"] / "config.json").read_text()) | {"num_hidden_layers": layers}
        (tmp_path / "config.json").write_text(json.dumps(raw))
        (tmp_path / "model.safetensors").write_bytes((folders["llama"] / "model.safetensors").read_bytes())
        with pytest.raises(ModelFileError, match=said):
            models.load(tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_headers_with_many_entries_are_quick(tmp_path):
    start = time.monotonic()
    entries = {f"t{i}": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for i in range(60_000)}
    text = json.dumps(entries).encode()
    (tmp_path / "many.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    assert len(read_file(tmp_path / "many.safetensors")) == 60_000
    header = b"GGUF" + struct.pack("<IQQ", 3, 300_000, 0)
    name = struct.pack("<Q", 1) + b"t" + struct.pack("<IQIQ", 1, 1, 0, 0)
    (tmp_path / "many.gguf").write_bytes(header + name * 300_000)
    with pytest.raises(ModelFileError, match="300000 tensors by its header; at most"):
        gguf_files.read_file(tmp_path / "many.gguf")
    assert time.monotonic() - start < 10


@pytest.mark.parametrize(
    ("merges", "said"),
    [
        (("a",), "does not merge two tokens"),
        (("a x",), "does not merge two"),
        (("a b",), "does not merge two"),
        (("",), "does not merge two"),
    ],
)
def test_bad_merges_of_a_gguf_file(tmp_path, merges, said):
    from sonde.models.files.gguf_tokens import tokenizer_of

    fields = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": ["a", "b", "c"],
        "tokenizer.ggml.merges": list(merges),
    }
    with pytest.raises(ModelFileError, match=said):
        tokenizer_of(fields)
    for name, odd in (("merges", [1]), ("tokens", [1]), ("token_type", [1]), ("scores", "x"), ("eos_token_id", "a")):
        with pytest.raises(ModelFileError, match=f"tokenizer.ggml.{name}"):
            tokenizer_of({**fields, "tokenizer.ggml.merges": [], f"tokenizer.ggml.{name}": odd})


def packed(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def gguf(file: Path, fields: dict[str, bytes], tensors: dict[str, tuple[tuple[int, ...], int]] | None = None) -> Path:
    """A small file of gemma3 with some more metadata (kind and contents) and tensors (shape and offset)."""
    sizes = {"embedding_length": 4, "block_count": 1, "attention.head_count": 1, "feed_forward_length": 8}
    entries = {"general.architecture": struct.pack("<I", 8) + packed("gemma3")}
    entries |= {f"gemma3.{name}": struct.pack("<II", 4, size) for name, size in sizes.items()} | fields
    entries |= {"gemma3.context_length": struct.pack("<II", 4, 16)}
    arrays = {"token_embd.weight": ((4, 8), 0)} | (tensors or {})
    data = b"GGUF" + struct.pack("<IQQ", 3, len(arrays), len(entries))
    data += b"".join(packed(name) + contents for name, contents in entries.items())
    for name, (shape, at) in arrays.items():
        data += packed(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, at)
    file.write_bytes(data + b"\0" * (-len(data) % 32) + bytes(1 << 20))
    return file


def array(kind: int, count: int, contents: bytes) -> bytes:
    return struct.pack("<IIQ", 9, kind, count) + contents


LARGE = {
    "layers": ({"gemma3.block_count": struct.pack("<II", 4, 2**31),
                "gemma3.attention.sliding_window_pattern": struct.pack("<II", 4, 6)}, {}, "'num_hidden_layers'"),
    "numbers": ({"x": array(0, 1 << 22, bytes(1 << 22))}, {}, "has metadata of 4194304 elements"),
    "lists": ({"x": array(9, 1 << 22, bytes(12 << 22))}, {}, "has metadata of 4194304 elements"),
    "text": ({"x": struct.pack("<IQ", 8, 1 << 25) + bytes(1 << 25)}, {}, "has a text of 33554432 bytes"),
    "factors": ({}, {"rope_freqs.weight": ((1 << 17,), 128)}, "not a factor for each frequency"),
    "empty": ({}, {"x": ((2**62, 2**62, 0), 128)}, "with the shape .*, which no array has"),
    "token": ({"tokenizer.ggml.model": struct.pack("<I", 8) + packed("llama"),
               "tokenizer.ggml.scores": array(6, 1, bytes(4)),
               "tokenizer.ggml.tokens": array(8, 1, packed("a" * 20_000))}, {}, "tokens that are too long"),
    "unknown": ({"tokenizer.ggml.model": struct.pack("<I", 8) + packed("llama"),
                 "tokenizer.ggml.scores": array(6, 1, bytes(4)), "tokenizer.ggml.tokens": array(8, 1, packed("a")),
                 "tokenizer.ggml.unknown_token_id": struct.pack("<Ii", 5, -1)}, {}, "unknown_token_id is -1"),
}  # fmt: skip


@pytest.mark.parametrize("case", LARGE)
def test_a_gguf_file_that_asks_for_more_than_a_model_needs(tmp_path, case):
    fields, tensors, said = LARGE[case]
    assert gguf_files.read_file(gguf(tmp_path / "plain.gguf", {}))[0]["num_hidden_layers"] == 1
    file, start = gguf(tmp_path / "large.gguf", fields, tensors), time.monotonic()
    with pytest.raises(ModelFileError, match=said):
        gguf_files.read_file(file)
    quickly(start)


def test_headers_that_no_file_has(tmp_path):
    file = tmp_path / "model.safetensors"
    for header, said in (
        ('{"a": {"dtype": "F32", "shape": [0, 4611686018427387904], "data_offsets": [0, 0]}}', "not a list of sizes"),
        ('{"a": [' + "0," * 2_000_000 + "0]}", "more than 1048576 entries"),
    ):
        file.write_bytes(len(header).to_bytes(8, "little") + header.encode())
        with pytest.raises(ModelFileError, match=said):
            read_file(file)
    names = {f"t{i}": f"{i}.safetensors" for i in range(10_001)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    with pytest.raises(ModelFileError, match="names 10001 files"):
        read_folder(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "model.gguf"])
def test_a_pipe_is_not_a_file(folders, tmp_path, name):
    """It would never answer."""
    (tmp_path / "config.json").write_bytes((folders["llama"] / "config.json").read_bytes())
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(ModelFileError, match="is not a file"):
        models.load(tmp_path / name if name.endswith("gguf") else tmp_path)


TEMPLATES = [
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n > 0 %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% set x = 'aaaaaaaaaaaaaaaa' %}" + "{% set x = x ~ x %}" * 36,
    "{% for i in range(99999) %}{{ 'a' * 9999 }}{% endfor %}",
    "{{ 'a' * 10 ** 10 }}", "{{ 9 ** 10000000 }}", "{{ [0] * 10 ** 10 }}", "{{ 'a' | center(10 ** 10) }}",
    "{{ 'a'.ljust(10 ** 10) }}", "{{ '{:>9999999999}'.format('a') }}", "{{ '%9999999999d' % 1 }}",
    "{{ '%9999999999d' | format(1) }}", "{{ range(99999) | join('x' * 99999) }}", "{{ ''.join([1] * 10 ** 7) }}",
    "{{ ('a' * 9999).replace('a', 'b' * 9999) }}", "{{ ('a' * 9999) | replace('a', 'b' * 9999) }}", "a" * (1 << 19),
    "{{ '' | tojson(indent=10 ** 10) }}",
]  # fmt: skip


@pytest.mark.every(3)
@pytest.mark.parametrize("template", TEMPLATES)
def test_templates_that_would_not_end_or_fit_into_memory(template):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelFileError, match="the chat template"):
        render(template, {})
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_000_000


def test_what_is_bounded_leaves_templates_as_they_are():
    template = (
        "{% macro turn(m) %}<{{ m.role }}>{{ m.content | trim }}{% endmacro %}\n"
        "{% for m in messages if m.role != 'tool' %}\n    {{ turn(m) }}{% if not loop.last %}, {% endif %}\n"
        "{% endfor %}\n{% set tail %}end{% endset %}"
        "{{ tail ~ '%s' % 3 ~ '-' * 3 ~ '{:>4}'.format(7) ~ 12345678 | abs }}"
    )
    messages = [{"role": role, "content": " hi "} for role in ("user", "tool", "model")]
    sandbox = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    assert render(template, {"messages": messages}) == sandbox.from_string(template).render(messages=messages)


TOKENIZER = {
    "version": "1.0",
    "added_tokens": [
        {"id": 2, "content": "?", "special": True, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False},
    ],
    "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "?": 2}, "unk_token": "?"},
}  # fmt: skip
TOKENIZER_CONFIG = {
    "eos_token": {"content": "?"},
    "pad_token": "a",
    "chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}",
}


@pytest.mark.parametrize("numbers", groups(40, 500))
def test_odd_tokenizers_and_templates(numbers, tmp_path):
    for seed in numbers:
        rng = random.Random(seed)
        files = {
            "tokenizer.json": TOKENIZER,
            "tokenizer_config.json": TOKENIZER_CONFIG,
            "generation_config.json": {"eos_token_id": [2]},
        }
        chosen = sorted(files)[seed % 3]
        data = {
            name: json.dumps(mutated(value, rng) if name == chosen else value).encode() for name, value in files.items()
        }
        if rng.random() < 0.3:
            data[chosen] = flipped(data[chosen], rng, 0, len(data[chosen]))
        for name, contents in data.items():
            (tmp_path / name).write_bytes(contents)
        (tmp_path / "chat_template.jinja").unlink(missing_ok=True)
        if seed % 5 == 0:
            template = rng.choice(
                ["{{", "{% for x in y %}", "{{ messages[9].x.y }}", "{{ ''.__class__ }}", "{{ 1 // 0 }}", "\xff"]
            )
            (tmp_path / "chat_template.jinja").write_text(template)
        try:
            tokenizer = Tokenizer.from_folder(tmp_path)
            assert tokenizer is not None
            tokenizer.encode("a b")
            try:
                tokenizer.chat("a")
            except ValueError:
                pass
        except ModelFileError as error:
            assert str(tmp_path) in str(error)
