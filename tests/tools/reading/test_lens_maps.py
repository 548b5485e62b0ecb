"""Jacobian and tuned lenses, against Jacobians by hand and a model whose best lens is known; and files of PyTorch."""

from __future__ import annotations

import base64
import io
import pickle
import zipfile
import zlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sonde
from sonde import models
from sonde.errors import NoSuchSiteError, StoreError
from sonde.tools import LensMap, LensMaps, jacobian_lens, logit_lens, tuned_lens

WIDTH, LENGTH, LAYERS = 4, 7, 3
RNG = np.random.default_rng(0)
MATRICES = jnp.asarray(RNG.standard_normal((LAYERS, WIDTH, WIDTH)), jnp.float32)
TEXTS = jnp.asarray(RNG.standard_normal((2, LENGTH, WIDTH)), jnp.float32)
CAUSAL = jnp.tril(jnp.ones((LENGTH, LENGTH))) / jnp.arange(1, LENGTH + 1)[:, None]


def layer(h: jax.Array, matrix: jax.Array) -> jax.Array:
    return h + jnp.tanh(CAUSAL @ h @ matrix)


def listed(x: jax.Array) -> jax.Array:
    for i in range(LAYERS):
        x = sonde.sow(layer(x, MATRICES[i]), f"blocks/{i}/out")
    return x


def scanned(x: jax.Array) -> jax.Array:
    with sonde.scope("blocks/*"):
        return jax.lax.scan(lambda h, m: (sonde.sow(layer(h, m), "out"), None), x, MATRICES)[0]


def by_hand(after: int, skip: int) -> np.ndarray:
    def rest(h: jax.Array) -> jax.Array:
        for matrix in MATRICES[after + 1 :]:
            h = layer(h, matrix)
        return h

    total = np.zeros((WIDTH, WIDTH))
    for text in TEXTS:
        for matrix in MATRICES[: after + 1]:
            text = layer(text, matrix)
        whole = np.asarray(jax.jacobian(rest)(text))  # position and unit of the end; of the value
        counts = range(skip, LENGTH - 1)
        total += sum(whole[q, :, p, :] for p in counts for q in counts) / len(counts)
    return total / len(TEXTS)


@pytest.mark.parametrize("f", [listed, scanned], ids=["list", "scan"])
def test_the_jacobians_are_those_by_hand(f: Any) -> None:
    ask = jacobian_lens(f, "blocks/*/out", last="blocks/2/out", skip=2, batch=3)
    lens = ask(TEXTS)
    assert list(lens) == [f"blocks/{i}/out" for i in range(LAYERS)] and lens.texts == 2
    for i in range(LAYERS):
        np.testing.assert_allclose(lens[f"blocks/{i}/out"].matrix, by_hand(i, 2), rtol=1e-4, atol=1e-5)
    one_by_one = ask.over([TEXTS[:1], TEXTS[1:]])
    np.testing.assert_allclose(one_by_one["blocks/0/out"].matrix, lens["blocks/0/out"].matrix, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_a_lens_is_an_error() -> None:
    with pytest.raises(ValueError, match="7 positions are too short"):
        jacobian_lens(listed, "blocks/*/out", last="blocks/2/out")(TEXTS)
    with pytest.raises(ValueError, match="must be one value"):
        jacobian_lens(listed, "blocks/*/out", last="blocks/*/out", skip=0)(TEXTS)
    with pytest.raises(NoSuchSiteError):
        jacobian_lens(listed, "layers/*", last="blocks/2/out", skip=0)(TEXTS)
    with pytest.raises(ValueError, match="there are no batches"):
        jacobian_lens(listed, "blocks/*/out", last="blocks/2/out", skip=0).over([])


def test_a_lens_reads_and_moves_what_a_layer_says() -> None:
    lens = jacobian_lens(listed, "blocks/*/out", last="blocks/2/out", skip=0)(TEXTS)
    read = jnp.asarray(RNG.standard_normal((WIDTH, 6)), jnp.float32)
    found = logit_lens(scanned, readout=lambda h: h @ read, k=2, maps=lens)(TEXTS)
    h = sonde.capture(listed)(TEXTS)[1]["blocks/1/out"].value
    logits = h @ by_hand(1, 0).T @ read
    np.testing.assert_array_equal(found["blocks/1/out"].tokens, jax.lax.top_k(logits, 2)[1])
    expected = jax.lax.top_k(jax.nn.softmax(logits), 2)[0]
    np.testing.assert_allclose(found["blocks/1/out"].probabilities, expected, rtol=1e-3)
    source, target = read[:, 0], read[:, 1]
    moved = lens.swap("blocks/1/out", source, target, strength=0.5)(h)
    unit = [v @ by_hand(1, 0) / np.linalg.norm(v @ by_hand(1, 0)) for v in (source, target)]
    expected = h + 0.5 * (h @ unit[0])[..., None] * (unit[1] - unit[0])
    np.testing.assert_allclose(moved, expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(lens.direction("blocks/1/out", target), unit[1], rtol=1e-3, atol=1e-4)
    with pytest.raises(NoSuchSiteError):
        lens.direction("blocks/7/out", target)


def test_training_finds_the_best_lens() -> None:
    """Each layer turns its value, so the best map turns it on to the end."""
    turns = [jnp.asarray(np.linalg.qr(RNG.standard_normal((WIDTH, WIDTH)))[0], jnp.float32) for _ in range(2)]

    def f(x: jax.Array) -> jax.Array:
        for i, turn in enumerate(turns):
            x = sonde.sow(x @ turn + 0.5, f"{i}")
        return 2 * x

    batches = [jnp.asarray(RNG.standard_normal((128, WIDTH)), jnp.float32) for _ in range(400)]
    lens = tuned_lens(f, "*", readout=lambda h: 2 * h, learning_rate=0.02)(batches)
    assert lens.losses["0"][-1] < 1e-3 < 0.1 < lens.losses["0"][0]
    assert lens.losses["1"].max() < 0.01  # right from the start, and it stays so
    h = sonde.capture(f)(batches[0])[1]["0"].value
    said, wanted = jax.nn.softmax(2 * lens["0"](h)), jax.nn.softmax(f(batches[0]))
    np.testing.assert_allclose(said, wanted, atol=0.05)
    with pytest.raises(ValueError, match="there are no batches"):
        tuned_lens(f, "*", readout=lambda h: h)([])


# A file that PyTorch 2.13 wrote: half-precision numbers in layer 0, and in layer 2 bfloat16 ones, transposed.
BY_TORCH = (
    "eNqllUtr1FAUx+9kpjNpaqcPta9FwV0EnSaTefVlp7EEMQvHijAIJaTJbSeYmcxN7lQqFASxUJfiwlX1M7jQleBXcO9CcOVGXfgBvDexaZLalrYX"
    "wmGG+z//35lzTqahpjMAsCw4cobBKNBdo2VtwRlTx3qh+9hW5Dx4FDvPmB0E+GaKCO6i1A5ieBUY2CG6gtbDlu1xmgvXe5Ztahh2PMfVtoocSvN8"
    "M0ckHrmpb0KUCSTcHd3eeBB8x6E+P6uAss00iUa3h3JqBiP2vgpURmV2UT8JqV3E7RmGY9vQwJbT8bh7rgldaK5YBubQwPVVdAmjwVWUV5kWsW0d"
    "WMmK7ehYrIR2Q76diIZbvs1IaDOqpmi4vNei2a5gdHUVjfWa/eR2R+u6TruLPTSupv2KTK3tmNBGEyrTHKQVOj3XgJqtb0PXQ5NraIqneWGv0FBz"
    "7Jr9/s8csaVP49hOjIPlsBOFDcdt61jbIulIuYq8mGjIGY9IMT7++vqcFk+f4zGmQPUQ41/nNN22Njtt2MGKLJ2HpFKiAEtP0A+GWDAnAoyApRBg"
    "fRtDh3Zakecv8gvYFsY2pAwvFr9PZolL9kSGPLgV24oZQZHnLgAAFkAdyGCFElx7/alBLdlTCBbiBKIi185N8K7+uf6tDpap/9sPy/B0/yEwH/qH"
    "U1g9L4DEUecv+5sPT+//NCgeDqBfugddi0zgU52uvmaZilw4I4hQroiiUCsXpYo4W6kK5eJsSZgVJUmo1ASpJFRrRUEQalVK+Xtf+skTDt6nTFHY"
    "kDO6ycNHyJPv0aQ6uoDjMeXLFDhu95NJoks0FV8cBpywuck80UUYieV5FckTLmBSHp3ifEw+lgaJ3UlqoxMY175JasWkNjpDQzHtRAYkJzYpjrZ2"
    "Ol5zRPz/oWuo2eyNgxFN3wyVbCIOMEGs9QWR6Og/BridCz4Hb9++bKBh/fvB3b/TK7Lh"
)


def test_files_of_pytorch_are_read_without_running_them(tmp_path: Path) -> None:
    file = tmp_path / "lens.pt"
    file.write_bytes(zlib.decompress(base64.b64decode(BY_TORCH)))
    lens = LensMaps.load(file, "layers/*/end")
    assert list(lens) == ["layers/0/end", "layers/2/end"] and lens.texts == 3
    np.testing.assert_array_equal(lens["layers/0/end"].matrix, [[1, 2], [3, 4]])
    np.testing.assert_array_equal(lens["layers/2/end"].matrix, [[5, 7], [6, 8]])
    with pytest.raises(FileNotFoundError):
        LensMaps.load(tmp_path / "missing.pt")

    def stored(what: Any) -> Path:
        with zipfile.ZipFile(tmp_path / "other.pt", "w") as archive:
            archive.writestr("other/data.pkl", pickle.dumps(what, protocol=2))
        return tmp_path / "other.pt"

    for what, why in (
        ({"J": {0: io.BytesIO}, "n_prompts": 1, "d_model": 2}, "it names .*BytesIO, which is refused"),
        ({"n_prompts": 1, "d_model": 2}, "KeyError: 'J'"),
        ({"J": {0: [[1.0]]}, "n_prompts": 1, "d_model": 2}, r"layer 0 has the shape \(1, 1\)"),
    ):
        with pytest.raises(StoreError, match=why):
            LensMaps.load(stored(what))
    arrays = models.read_named_arrays(file)
    assert list(arrays) == ["J/0", "J/2"] and arrays["J/2"].dtype == jnp.bfloat16  # numbers and lists are left out
    np.testing.assert_array_equal(arrays["J/2"].astype(np.float32), [[5, 7], [6, 8]])
    file.write_bytes(b"no archive")
    with pytest.raises(StoreError, match="does not hold a Jacobian lens"):
        LensMaps.load(file)


@pytest.mark.parametrize(
    ("shape", "strides", "refused"),
    [((3,), (1,), False), ((2, 2), (1, 1), True), ((4,), (1,), True), ((10**12,), (0,), True), ((3,), (-1,), True)],
)
def test_tensors_that_do_not_fit_are_refused(tmp_path: Path, shape: Any, strides: Any, refused: bool) -> None:
    part = lambda value: pickle.dumps(value, protocol=2)[2:-1]  # without the head and the end
    numbers = b"(" + part("storage") + b"ctorch\nLongStorage\n" + part("0") + part("cpu") + part(3) + b"tQ"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + numbers + part(0) + part(shape) + part(strides) + b"tR"
    file = tmp_path / "weights.pth"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("any/data.pkl", b"\x80\x02}(" + part("w") + tensor + part("epoch") + part(3) + b"u.")
        archive.writestr("any/data/0", np.arange(3, dtype="<i8").tobytes())
    if refused:
        with pytest.raises(ValueError, match="outside its storage, or larger"):
            models.read_named_arrays(file)
    else:
        np.testing.assert_array_equal(models.read_named_arrays(file)["w"], [0, 1, 2])


@pytest.mark.transformers
def test_pytorch_reads_what_is_saved(tmp_path: Path) -> None:
    import torch

    matrix = np.arange(4, dtype=np.float32).reshape(2, 2)
    LensMaps({"blocks/3/out": LensMap(matrix, np.zeros(2, np.float32))}, 5).save(tmp_path / "lens.pt")
    stored = torch.load(tmp_path / "lens.pt", weights_only=True)
    assert stored["source_layers"] == [3] and stored["n_prompts"] == 5 and stored["d_model"] == 2
    np.testing.assert_array_equal(stored["J"][3].numpy(), matrix)
    np.testing.assert_array_equal(LensMaps.load(tmp_path / "lens.pt")["blocks/3/out"].matrix, matrix)
    with pytest.raises(ValueError, match="has a bias"):
        LensMaps({"blocks/3/out": LensMap(matrix, np.ones(2, np.float32))}, 5).save(tmp_path / "lens.pt")
