"""Every architecture gives the numbers that `transformers` gave for the same weights, as a list and as a scan."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.models.cases import CASES, apart, inputs, oracle, outputs, write_checkpoint

from sonde import models, nnx, ops
from sonde.models.architectures import find, read_config
from sonde.models.name_tables import expand
from sonde.models.weights import parameters_of


def counted(given: dict[str, np.ndarray], values: Any) -> Any:
    """The values at tokens that are not padding."""
    return np.asarray(values)[given["mask"]] if "mask" in given else values


# Those whose layers differ from one another, and one of every module.
SCANNED = ("llama", "qwen2_windows", "gemma3", "gpt2", "bert_masked", "clip")


@pytest.mark.every(4)
@pytest.mark.parametrize("name", CASES)
def test_outputs(name: str, tmp_path: Any) -> None:
    stored, given = oracle(name), inputs(CASES[name])
    folder = write_checkpoint(tmp_path / "checkpoint", stored)
    expected = counted(given, stored["outputs"])
    assert apart(counted(given, nnx.jit(outputs)(models.load(folder), given)), expected) < 1e-5
    if name in SCANNED:
        assert apart(counted(given, nnx.jit(outputs)(models.load(folder, layers="scan"), given)), expected) < 1e-5


@pytest.mark.every(3)
@pytest.mark.parametrize("name", CASES)
def test_what_is_saved_is_what_was_loaded(name: str, tmp_path: Any) -> None:
    stored = oracle(name)
    first = models.load(write_checkpoint(tmp_path / "first", stored))
    models.save(first, tmp_path / "second")
    models.save(models.load(tmp_path / "second", layers="scan"), tmp_path / "third")
    third = models.load(tmp_path / "third")
    for (path, a), b in zip(parameters_of(first).items(), parameters_of(third).values()):
        np.testing.assert_array_equal(a[...], b[...], err_msg=path)
    assert third.config == first.config


@pytest.mark.parametrize(("name", "layers"), [("llama", "list"), ("gpt2", "scan")])
def test_gradients(name: str, layers: Any, tmp_path: Any) -> None:
    stored, given = oracle(name), inputs(CASES[name])
    model = models.load(write_checkpoint(tmp_path / "checkpoint", stored), layers=layers)
    tokens, mask = jnp.asarray(given["tokens"]), jnp.asarray(given["mask"])

    definition, parameters = nnx.split(model)

    def loss(parameters: Any) -> jax.Array:
        logs = jax.nn.log_softmax(nnx.merge(definition, parameters)(tokens, mask=mask)[:, :-1])
        chosen = jnp.take_along_axis(logs, tokens[:, 1:, None], -1)[..., 0]
        return -(chosen * mask[:, :-1]).sum() / mask[:, :-1].sum()

    value, grads = jax.jit(jax.value_and_grad(loss))(parameters)
    assert abs(float(value) - stored["loss"]) < 1e-5 * stored["loss"]
    flat = {"/".join(map(str, path)): leaf[...] for path, leaf in nnx.to_flat_state(grads)}
    rows = {row.theirs: row for row in expand(find(stored["config"])[0].rows(model.config), model.config.layers)}
    for theirs, expected in stored["gradients"].items():
        row = rows[theirs]
        found = row.join(*(np.asarray(gradient_at(flat, path)) for path in row.ours))
        assert apart(found, expected) < 1e-4, theirs


def gradient_at(flat: dict[str, Any], path: str) -> Any:
    if path in flat:
        return flat[path]
    before, _, after = path.partition("blocks/")
    layer, _, rest = after.partition("/")
    return flat[f"{before}blocks/{rest}"][int(layer)]


def test_bfloat16_is_near_float32(tmp_path: Any) -> None:
    stored, given = oracle("gemma2"), inputs(CASES["gemma2"])
    model = models.load(write_checkpoint(tmp_path / "checkpoint", stored), dtype=jnp.bfloat16)
    assert {leaf.dtype for leaf in parameters_of(model).values()} == {jnp.dtype("bfloat16")}
    assert apart(nnx.jit(outputs)(model, given), stored["outputs"]) < 0.1


@pytest.mark.parametrize("name", ["llama", "llama_3", "llama_yarn", "phi3", "gemma3", "phi", "gpt_neox"])
def test_configs_as_transformers_5_writes_them(name: str) -> None:
    """Everything about rotary embeddings is then in `rope_parameters`, for every kind of layers if they differ."""
    old = oracle(name)["config"]
    told = {"rope_type": "default", "rope_theta": old.get("rope_theta", old.get("rotary_emb_base"))}
    scaling = old.get("rope_scaling") or {}
    told |= scaling | {"rope_type": scaling.get("rope_type", scaling.get("type", "default"))}
    for entry, theirs in (("partial_rotary_factor", "partial_rotary_factor"), ("rotary_pct", "partial_rotary_factor")):
        told |= {theirs: old[entry]} if entry in old else {}
    if "original_max_position_embeddings" in old:
        told["original_max_position_embeddings"] = old["original_max_position_embeddings"]
    if "layer_types" in old:
        local = {"rope_type": "default", "rope_theta": old["rope_local_base_freq"]}
        told = {"full_attention": told, "sliding_attention": local}
    gone = "rope_theta rope_scaling rotary_emb_base rotary_pct partial_rotary_factor rope_local_base_freq"
    gone = {*gone.split(), "original_max_position_embeddings"}
    new = {key: value for key, value in old.items() if key not in gone} | {"rope_parameters": told}
    positions = jnp.arange(20)
    for before, after in zip(read_config(old)[1].kinds, read_config(new)[1].kinds):
        assert before.window == after.window
        for a, b in zip(ops.rotary_tables(positions, before.rotary), ops.rotary_tables(positions, after.rotary)):
            np.testing.assert_array_equal(a, b)
