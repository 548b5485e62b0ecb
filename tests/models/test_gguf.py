"""GGUF files: every architecture that llama.cpp has too, every quantization that the package `gguf` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import jax.numpy as jnp
import numpy as np
import pytest
from tests.models.cases import CASES, apart, inputs, oracle, outputs
from tests.models.gguf_files import ARCHITECTURES, finish, write_gguf

from sonde import models, nnx
from sonde.models.files.gguf import read_file

FUSED = {"phi2", "bert"}
DTYPES = {"F16": np.float16, "F32": np.float32, "F64": np.float64, "BF16": jnp.bfloat16}
KINDS = sorted(kind.name for kind in gguf.quants._type_traits) + ["F16", "F32", "F64"]


@pytest.mark.every(3)
@pytest.mark.parametrize("case", ARCHITECTURES)
def test_a_file_computes_what_its_folder_does(case: str, tmp_path: Path) -> None:
    stored, given = oracle(case), inputs(CASES[case])
    write_gguf(tmp_path / "model.gguf", case, stored, fused=case in FUSED)
    model = models.load(tmp_path / "model.gguf", layers="scan" if case in FUSED else "list")
    if case in ("gemma2", "gemma3"):  # a file does not say what scores are divided by: the depth of a head, by the root
        assert model.config.scale == model.config.depth**-0.5
        for block in model.blocks:
            block.attn.scale = stored["config"]["query_pre_attn_scalar"] ** -0.5
    found, expected = np.asarray(nnx.jit(outputs)(model, given)), np.asarray(stored["outputs"])
    if "mask" in given:
        found, expected = found[given["mask"]], expected[given["mask"]]
    assert apart(found, expected) < 1e-4


def test_pooling_is_what_the_file_says(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", "bert", oracle("bert"))
    model = models.load(tmp_path / "model.gguf")
    assert model.config.pooling == "first" and model.pooler is None


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_number_that_the_package_reads(name: str, tmp_path: Path) -> None:
    """Numbers of every kind, from random bytes where the package cannot write the kind itself."""
    kind = gguf.GGMLQuantizationType[name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(3)
    stored = rng.integers(0, 256, (6, 2 * size * max(1, 256 // block)), np.uint8)
    try:
        stored = gguf.quants.quantize(rng.normal(size=(6, 512)).astype(np.float32), kind).view(np.uint8)
    except NotImplementedError:
        pass
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tensor("token_embd.weight", stored, raw_dtype=kind)
    finish(writer)
    with np.errstate(all="ignore"):  # random bytes are also infinities
        _compare(name, kind, stored, tmp_path / "model.gguf")


def _compare(name: str, kind: Any, stored: np.ndarray, path: Path) -> None:
    expected = gguf.quants.dequantize(stored, kind) if kind in gguf.quants._type_traits else stored.view(DTYPES[name])
    _, tensors, _ = read_file(path)
    found = tensors["model.embed_tokens.weight"]
    assert found.dtype == DTYPES.get(name, np.float32)
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found.read().astype(expected.dtype), expected)
