"""Loading: errors name what does not fit, nothing is partly loaded, memory stays small, devices share the work."""

from __future__ import annotations

import fnmatch
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import jax.numpy as jnp
import numpy as np
import pytest
from tests.models.cases import CASES, apart, inputs, oracle, outputs, weights, write_checkpoint
from tests.processes import xla_flags

from sonde import models, nnx
from sonde.errors import ModelFileError
from sonde.models.files.safetensors import read_file, write_file
from sonde.models.weights import parameters_of

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "llama", oracle("llama"))


def tensors_of(folder: Path) -> dict[str, np.ndarray]:
    return {name: np.array(tensor.read()) for name, tensor in read_file(folder / "model.safetensors").items()}


def rewrite(folder: Path, arrays: dict[str, np.ndarray], name: str = "model.safetensors") -> None:
    write_file(folder / name, [(key, array, (lambda array=array: array)) for key, array in arrays.items()])


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


# ---------------------------------------------------------------------------------------------------------------------
# What does not fit
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", ["list", "scan"])
def test_missing_surplus_and_misshapen_tensors_are_named(folder: Path, layers: Any) -> None:
    arrays = tensors_of(folder)
    del arrays["model.layers.1.mlp.up_proj.weight"]
    arrays["model.layers.2.mlp.up_proj.weight"] = np.zeros((2, 2), np.float32)
    arrays["model.norm.weight"] = np.zeros((17,), np.float32)
    rewrite(folder, arrays)
    with pytest.raises(ModelFileError) as error:
        models.load(folder, layers=layers)
    text = str(error.value)
    assert "missing: model.layers.1.mlp.up_proj.weight" in text
    assert "surplus: model.layers.2.mlp.up_proj.weight" in text
    assert "misshapen: model.norm.weight is [17], should be [16]" in text


def test_unknown_architecture(folder: Path) -> None:
    change_config(folder, architectures=["OtherForCausalLM"])
    with pytest.raises(ModelFileError, match="OtherForCausalLM is not supported. Supported: BertForMaskedLM"):
        models.load(folder)


def test_config_without_an_entry(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "hidden_size": 3}))
    with pytest.raises(ModelFileError, match="lacks the entry 'num_attention_heads'"):
        models.load(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelFileError, match=r"has no config.json"):
        models.load(folder)


@pytest.mark.parametrize("size", [-1, 40, 4])
def test_a_file_that_was_cut_off(folder: Path, size: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ModelFileError, match=r"is truncated|is not a safetensors file"):
        models.load(folder)


def test_no_pickle_is_opened(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02cos\nsystem\n.")
    with pytest.raises(ModelFileError, match=r"pytorch_model.bin may hold pickled code and will not be opened"):
        models.load(folder)


def test_a_model_of_another_kind_is_refused(folder: Path) -> None:
    assert type(models.load(folder, kind=models.Decoder)) is models.Decoder
    assert type(models.load(folder, kind=nnx.Module)) is models.Decoder
    with pytest.raises(ModelFileError, match=r"llama is a Decoder \(llama\), and kind= asks for Encoder"):
        models.load(folder, kind=models.Encoder)


def test_nothing_there() -> None:
    with pytest.raises(FileNotFoundError, match="nothing at '/nowhere/at/all'"):
        models.load("/nowhere/at/all")


def test_adapters_cannot_be_saved(folder: Path, tmp_path: Path) -> None:
    model = models.load(folder)
    model.blocks[0].attn.q = nnx.LoRA(16, 2, 16, base_module=model.blocks[0].attn.q, rngs=nnx.Rngs(0))
    with pytest.raises(ModelFileError, match="no tensor for blocks/0/attn/q/base_module/kernel"):
        models.save(model, tmp_path / "saved")


# ---------------------------------------------------------------------------------------------------------------------
# Forms of a checkpoint
# ---------------------------------------------------------------------------------------------------------------------


def test_several_files_with_an_index(folder: Path, tmp_path: Path) -> None:
    model = models.load(folder)
    models.save(model, tmp_path / "many", largest_file=4000)
    files = sorted(path.name for path in (tmp_path / "many").glob("*.safetensors"))
    assert len(files) > 3
    again = models.load(tmp_path / "many")
    for a, b in zip(parameters_of(model).values(), parameters_of(again).values()):
        np.testing.assert_array_equal(a[...], b[...])
    (tmp_path / "many" / files[1]).unlink()
    with pytest.raises(ModelFileError, match=f"names files that do not exist: {files[1]}"):
        models.load(tmp_path / "many")


def test_names_without_the_prefix(tmp_path: Path) -> None:
    stored = oracle("gpt2")
    folder = write_checkpoint(tmp_path / "gpt2", stored)
    rewrite(folder, {name.removeprefix("transformer."): array for name, array in tensors_of(folder).items()})
    given = inputs(CASES["gpt2"])
    out = np.asarray(outputs(models.load(folder), given))[given["mask"]]
    assert apart(out, np.asarray(stored["outputs"])[given["mask"]]) < 1e-5


def test_dtype_of_the_checkpoint_is_kept(folder: Path) -> None:
    rewrite(folder, {name: array.astype(jnp.bfloat16) for name, array in tensors_of(folder).items()})
    assert models.load(folder).dtype == jnp.bfloat16
    assert models.load(folder, dtype="float32").dtype == jnp.float32


# ---------------------------------------------------------------------------------------------------------------------
# GGUF
# ---------------------------------------------------------------------------------------------------------------------

LLAMA_SIZES = {"n_layer": 2, "n_embd": 64, "n_head": 4, "n_head_kv": 2, "n_ff": 96}


def write_gguf(path: Path, quantization: Any) -> dict[str, np.ndarray]:
    """A Llama as llama.cpp stores it; returns what its tensors are under the names of Hugging Face."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_embedding_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_feed_forward_length(96)
    writer.add_context_length(128)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(5000.0)
    plain: dict[str, np.ndarray] = {}

    def add(name: str, theirs: str, shape: tuple[int, ...], heads: int = 0) -> None:
        array = weights(theirs, shape)
        stored = array
        if heads:  # llama.cpp pairs neighbors
            stored = array.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)
        if len(shape) > 1 and quantization.name != "F32":
            packed = gguf.quants.quantize(np.ascontiguousarray(stored), quantization)
            writer.add_tensor(name, packed, raw_dtype=quantization)
            read = gguf.quants.dequantize(packed, quantization)
            if heads:
                read = read.reshape(heads, shape[0] // heads // 2, 2, *shape[1:]).swapaxes(1, 2).reshape(shape)
            plain[theirs] = read
        else:
            writer.add_tensor(name, np.ascontiguousarray(stored))
            plain[theirs] = array

    add("token_embd.weight", "model.embed_tokens.weight", (40, 64))
    add("output_norm.weight", "model.norm.weight", (64,))
    for i in range(2):
        layer, theirs = f"blk.{i}", f"model.layers.{i}"
        add(f"{layer}.attn_norm.weight", f"{theirs}.input_layernorm.weight", (64,))
        add(f"{layer}.ffn_norm.weight", f"{theirs}.post_attention_layernorm.weight", (64,))
        add(f"{layer}.attn_q.weight", f"{theirs}.self_attn.q_proj.weight", (64, 64), heads=4)
        add(f"{layer}.attn_k.weight", f"{theirs}.self_attn.k_proj.weight", (32, 64), heads=2)
        add(f"{layer}.attn_v.weight", f"{theirs}.self_attn.v_proj.weight", (32, 64))
        add(f"{layer}.attn_output.weight", f"{theirs}.self_attn.o_proj.weight", (64, 64))
        for part, name in (("gate", "gate"), ("up", "up")):
            add(f"{layer}.ffn_{part}.weight", f"{theirs}.mlp.{name}_proj.weight", (96, 64))
        add(f"{layer}.ffn_down.weight", f"{theirs}.mlp.down_proj.weight", (64, 96))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return plain


@pytest.mark.parametrize("name", ["F32", "Q8_0", "Q4_0", "Q5_1"])
def test_gguf(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    plain = write_gguf(path, gguf.GGMLQuantizationType[name])
    model = models.load(path)
    models.save(model, tmp_path / "saved")
    for theirs, array in tensors_of(tmp_path / "saved").items():
        np.testing.assert_array_equal(array, plain[theirs], err_msg=theirs)
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"] and config["tie_word_embeddings"]
    assert (config["rope_theta"], config["num_key_value_heads"]) == (5000.0, 2)


def test_gguf_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, gguf.GGMLQuantizationType.Q8_0)
    whole = path.read_bytes()
    for size in (len(whole) - 100, 300):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelFileError, match="is truncated"):
            models.load(path)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(ModelFileError, match="is not a GGUF file"):
        models.load(path)


def test_a_name_on_the_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked: list[inspect.BoundArguments] = []
    signature = inspect.signature(huggingface_hub.snapshot_download)

    def stand_in(*args: Any, **options: Any) -> str:
        asked.append(signature.bind(*args, **options))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", stand_in)
    model = models.load("org/name", layers="scan")
    assert asked[0].arguments["repo_id"] == "org/name"
    patterns = asked[0].arguments["allow_patterns"]
    wanted = {"config.json", "model-00001-of-00002.safetensors", "tokenizer.json", "1_Pooling/config.json"}
    assert all(any(fnmatch.fnmatch(name, pattern) for pattern in patterns) for name in wanted)
    assert not any(fnmatch.fnmatch("pytorch_model.bin", pattern) for pattern in patterns)
    np.testing.assert_array_equal(model.embed.embedding[...], models.load(folder).embed.embedding[...])
    for no_name in ("./org/name", "org/name/more", "name", "org/name.gguf"):
        with pytest.raises(FileNotFoundError, match="there is nothing at"):
            models.load(no_name)
    assert len(asked) == 1
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(FileNotFoundError, match="huggingface_hub"):
        models.load("org/name")


def test_old_names_and_what_a_class_does_not_use(tmp_path: Path) -> None:
    """The first BERTs call scale and bias of norms gamma and beta, and come with heads that their class lacks."""
    folder = write_checkpoint(tmp_path / "bert", oracle("bert_masked"))
    arrays = tensors_of(folder)
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): array for name, array in arrays.items()}
    old = {name.replace("LayerNorm.bias", "LayerNorm.beta"): array for name, array in old.items()}
    width = np.zeros((16, 16), np.float32)
    old |= {"bert.pooler.dense.weight": width, "bert.pooler.dense.bias": width[0]}
    old |= {"cls.seq_relationship.weight": width[:2], "cls.seq_relationship.bias": width[0, :2]}
    expected = parameters_of(models.load(folder))
    rewrite(folder, old)
    for path, leaf in parameters_of(models.load(folder)).items():
        np.testing.assert_array_equal(leaf[...], expected[path][...], err_msg=path)


# ---------------------------------------------------------------------------------------------------------------------
# Devices and memory
# ---------------------------------------------------------------------------------------------------------------------

SHARDED = """
import sys, jax, jax.numpy as jnp, numpy as np
from sonde import models
from sonde.models.weights import parameters_of
mesh = jax.make_mesh((4,), ("model",))
tokens = jnp.asarray(np.random.default_rng(0).integers(0, 40, (2, 6)))
folder, layers = sys.argv[1:]
one, four = models.load(folder, layers=layers), models.load(folder, layers=layers, mesh=mesh)
split = " ".join(path for path, leaf in parameters_of(four).items() if not leaf[...].is_fully_replicated)
assert all(part in split for part in ("attn/q/kernel", "attn/o/kernel", "mlp/down/kernel", "embed/embedding"))
a, b = jax.jit(one)(tokens), jax.jit(four)(tokens)
assert float(abs(a - b).max()) < 1e-5 * float(abs(a).max())
a, b = (models.generate(m, [[3, 4, 5], [6]], max_new_tokens=4, stop=[]) for m in (one, four))
assert a.tokens.tolist() == b.tokens.tolist()
print("same numbers")
"""


def in_process(code: str, *arguments: str, devices: int = 1) -> str:
    environment = os.environ | {
        "XLA_FLAGS": xla_flags(devices),
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
    }
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.every(2)
@pytest.mark.parametrize("layers", ["scan", "list"])
def test_four_devices_give_the_numbers_of_one(folder: Path, layers: str) -> None:
    assert "same numbers" in in_process(SHARDED, str(folder), layers, devices=4)


MEMORY = """
import sys, resource, jax, jax.numpy as jnp
from sonde import models
from sonde.models.weights import parameters_of
def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) * 1024
jnp.zeros(1).block_until_ready()
models.load(sys.argv[1])  # what is loaded and compiled once
before = peak()
model = models.load(sys.argv[2], layers=sys.argv[3])
jax.block_until_ready([leaf[...] for leaf in parameters_of(model).values()])
size = sum(leaf[...].nbytes for leaf in parameters_of(model).values())
print((peak() - before) / size)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("layers", ["list", "scan"])
def test_peak_memory(folder: Path, tmp_path: Path, layers: str) -> None:
    config = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 16, "hidden_size": 768}
    config |= {"num_attention_heads": 12, "intermediate_size": 2048, "vocab_size": 32000}
    models.save(models.from_config(config), tmp_path / "large")
    used = float(in_process(MEMORY, str(folder), str(tmp_path / "large"), layers))
    assert used < 1.2
