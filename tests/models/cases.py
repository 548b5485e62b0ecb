"""Small models of every architecture: configs, weights that depend on nothing but names, inputs.

`make_oracles.py` runs them in `transformers` and stores what comes out; the tests run them here. Neither `torch` nor
`transformers` is needed for the tests.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde.models.files.safetensors import write_file

ORACLES = Path(__file__).parent / "oracles"
LENGTH = 9
VOCABULARY = 40


@dataclasses.dataclass(frozen=True)
class Case:
    """A model: its class and config in `transformers`, and what it is given.

    Attributes:
        model: the class.
        options: of the config.
        padded: whether the first text is shorter than the others.
        gradients: whether the gradients of a loss are stored as well.
    """

    model: str
    options: dict[str, Any]
    padded: bool = False
    gradients: bool = False


_SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GROUPED = {**_SIZES, "num_key_value_heads": 2}
_GEMMA = {**_GROUPED, "head_dim": 6, "num_hidden_layers": 3}
_BERT = {**_SIZES, "num_attention_heads": 2, "hidden_act": "gelu"}
_VIT = {
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "image_size": 8,
    "patch_size": 4,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_CLIP_TEXT = {**_SIZES, "eos_token_id": 39}


def _scaled(**scaling: Any) -> dict[str, Any]:
    return {**_GROUPED, "rope_scaling": scaling}


CASES: dict[str, Case] = {
    "llama": Case("LlamaForCausalLM", _GROUPED, padded=True, gradients=True),
    "llama_biases_tied": Case(
        "LlamaForCausalLM", {**_GROUPED, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}
    ),
    "llama_3": Case("LlamaForCausalLM", {**_GROUPED, "rope_theta": 50.0, "rope_scaling": _LLAMA3}),
    "llama_linear": Case("LlamaForCausalLM", _scaled(rope_type="linear", factor=2.5)),
    "llama_dynamic": Case(
        "LlamaForCausalLM", {**_scaled(rope_type="dynamic", factor=3.0), "max_position_embeddings": 5}
    ),
    "llama_longrope": Case(
        "LlamaForCausalLM",
        {
            **_scaled(rope_type="longrope", factor=3.0, short_factor=[1.0, 1.5], long_factor=[1.2, 3.0]),
            "max_position_embeddings": 5,
        },
    ),
    "llama_yarn": Case(
        "LlamaForCausalLM",
        {
            **_scaled(rope_type="yarn", factor=4.0, original_max_position_embeddings=8, beta_fast=4.0),
            "head_dim": 8,
            "rope_theta": 100.0,
        },
    ),
    "mistral": Case("MistralForCausalLM", {**_GROUPED, "sliding_window": 3}, padded=True),
    "qwen2": Case("Qwen2ForCausalLM", {**_GROUPED, "use_sliding_window": False}),
    "qwen2_windows": Case(
        "Qwen2ForCausalLM", {**_GROUPED, "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}
    ),
    "qwen3": Case("Qwen3ForCausalLM", {**_GROUPED, "head_dim": 8}),
    "gemma": Case("GemmaForCausalLM", _GEMMA),
    "gemma2": Case(
        "Gemma2ForCausalLM",
        {
            **_GEMMA,
            "sliding_window": 3,
            "query_pre_attn_scalar": 10,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma3": Case(
        "Gemma3ForCausalLM",
        {
            **_GEMMA,
            "sliding_window": 3,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_theta": 1000.0,
            "rope_local_base_freq": 10.0,
        },
        padded=True,
    ),
    "gpt2": Case(
        "GPT2LMHeadModel",
        {"n_layer": 2, "n_embd": 16, "n_head": 4, "vocab_size": VOCABULARY, "n_positions": 32},
        padded=True,
        gradients=True,
    ),
    "gpt_neox": Case("GPTNeoXForCausalLM", {**_SIZES, "rotary_pct": 0.5, "use_parallel_residual": True}),
    "gpt_neox_in_turn": Case("GPTNeoXForCausalLM", {**_SIZES, "rotary_pct": 1.0, "use_parallel_residual": False}),
    "phi": Case("PhiForCausalLM", {**_GROUPED, "partial_rotary_factor": 0.5, "qk_layernorm": True}),
    "phi2": Case("PhiForCausalLM", {**_SIZES, "partial_rotary_factor": 0.5, "tie_word_embeddings": True}),
    "phi3": Case(
        "Phi3ForCausalLM",
        {
            **_GROUPED,
            "original_max_position_embeddings": 8,
            "rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [1.2, 3.0]},
        },
    ),
    "bert": Case("BertModel", _BERT, padded=True),
    "bert_masked": Case("BertForMaskedLM", _BERT, padded=True),
    "bert_masked_untied": Case("BertForMaskedLM", {**_BERT, "tie_word_embeddings": False, "hidden_act": "relu"}),
    "bert_pretraining": Case("BertForPreTraining", _BERT, padded=True),
    "bert_classes": Case("BertForSequenceClassification", {**_BERT, "num_labels": 3}),
    "roberta": Case("RobertaModel", _BERT | {"pad_token_id": 1, "bos_token_id": 0}),
    "roberta_masked": Case("RobertaForMaskedLM", _BERT | {"pad_token_id": 1, "bos_token_id": 0}),
    "roberta_classes": Case(
        "RobertaForSequenceClassification", _BERT | {"pad_token_id": 1, "bos_token_id": 0, "num_labels": 3}
    ),
    "vit": Case("ViTModel", _VIT),
    "vit_gray": Case("ViTModel", {**_VIT, "num_channels": 1, "qkv_bias": False}),
    "vit_classes": Case("ViTForImageClassification", {**_VIT, "num_labels": 3}),
    "clip": Case("CLIPModel", {"text_config": _CLIP_TEXT, "vision_config": _VIT, "projection_dim": 12}),
    "clip_text": Case("CLIPTextModelWithProjection", {**_CLIP_TEXT, "projection_dim": 12}),
    "clip_image_alone": Case("CLIPVisionModel", _VIT),
    "clip_image": Case("CLIPVisionModelWithProjection", {**_VIT, "projection_dim": 12}),
}


def weights(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers for a tensor, which depend on its name alone; those of norms are around one."""
    numbers = np.random.default_rng(zlib.crc32(name.encode())).normal(size=shape)
    is_scale = name.endswith("weight") and len(shape) == 1
    return (0.3 * numbers + is_scale).astype(np.float32)


def inputs(case: Case) -> dict[str, np.ndarray]:
    """What a model is given: tokens with a mask, images, or both."""
    rng = np.random.default_rng(7)
    tokens = rng.integers(3, VOCABULARY - 1, (2, LENGTH)).astype(np.int32)
    images = rng.normal(size=(2, 8, 8, case.options.get("num_channels", 3))).astype(np.float32)
    found: dict[str, np.ndarray] = {}
    if case.model.startswith("CLIP") or not case.model.startswith("ViT"):
        found["tokens"] = tokens
    if case.model.startswith(("CLIPModel", "CLIPVision", "ViT")):
        found["images"] = images
    if case.model.startswith("CLIPVision"):
        del found["tokens"]
    if case.model.startswith("CLIP") and "tokens" in found:
        tokens[:, -1], tokens[0, 5] = 39, 39
    if case.padded:
        mask = np.ones(tokens.shape, bool)
        # Language models are padded before a text, the others after it.
        mask[0, slice(0, 3) if is_decoder(case) else slice(6, None)] = False
        found["mask"] = mask
    return found


def is_decoder(case: Case) -> bool:
    return "CausalLM" in case.model or "LMHead" in case.model


def outputs(model: Any, given: dict[str, np.ndarray]) -> jax.Array:
    """The outputs of our model."""
    arrays = [jnp.asarray(given[name]) for name in ("images", "tokens") if name in given]
    options = {"mask": jnp.asarray(given["mask"])} if "mask" in given else {}
    return model(*arrays, **options)


def oracle(name: str) -> dict[str, Any]:
    """The stored results of `transformers` for a case: config, shapes, outputs, gradients."""
    return json.loads((ORACLES / f"{name}.json").read_text())


def write_checkpoint(folder: Path, stored: dict[str, Any]) -> Path:
    """Writes the checkpoint of a case."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(stored["config"]))
    arrays = {name: weights(name, tuple(shape)) for name, shape in stored["tensors"].items()}
    entries = [(name, array, (lambda array=array: array)) for name, array in arrays.items()]
    write_file(folder / "model.safetensors", entries)
    return folder


def apart(ours: Any, theirs: Any) -> float:
    """The largest difference, as a part of the largest number."""
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    assert ours.shape == theirs.shape
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())
