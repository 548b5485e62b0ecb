"""Prints numbers of a tiny model of every family that `transformers` has in Flax: run it with `sonde check-move`.

A line has the sums of the initial parameters, of the outputs and of the gradients. Needs `transformers` below 5.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_flax_auto import FLAX_MODEL_MAPPING_NAMES

_WIDTHS = ("hidden_size", "d_model", "n_embd", "dim", "embedding_size", "projection_dim")
_DEPTHS = "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_decoder_layers".split()
_HEADS = "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads".split()
_INNER = "intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim d_ff n_inner hidden_dim".split()
_LENGTHS = "max_position_embeddings n_positions max_source_positions max_target_positions".split()
SMALL: dict[str, Any] = {
    **dict.fromkeys(_WIDTHS, 16),
    **dict.fromkeys(_DEPTHS, 2),
    **dict.fromkeys(_HEADS, 2),
    **dict.fromkeys(_INNER, 24),
    **dict.fromkeys(_LENGTHS, 64),
    "vocab_size": 48,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "d_kv": 8,
    "rotary_dim": 4,
    "image_size": 16,
    "patch_size": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "use_cache": False,
}
OF_FAMILY: dict[str, dict[str, Any]] = {
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "big_bird": {"attention_type": "original_full"},
    "whisper": {"num_mel_bins": 8, "max_source_positions": 8},
    "resnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
    "regnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "groups_width": 8},
    "wav2vec2": {
        "conv_dim": [8],
        "conv_stride": [2],
        "conv_kernel": [3],
        "num_conv_pos_embeddings": 4,
        "num_conv_pos_embedding_groups": 2,
        "do_stable_layer_norm": True,
        "feat_extract_norm": "layer",
    },
}


def small_config(family: str) -> Any:
    """A configuration of the family with every size that it takes made small."""
    kind = CONFIG_MAPPING[family]
    takes = inspect.signature(kind.__init__).parameters
    options = {name: value for name, value in SMALL.items() if name in takes} | OF_FAMILY.get(family, {})
    if "text_config" in takes and "vision_config" in takes:
        options = {"text_config": SMALL, "vision_config": SMALL, "projection_dim": 16}
    return kind(**options)


def inputs_of(family: str, config: Any) -> dict[str, Any]:
    """Arguments for one call of a model of the family."""
    tokens = jnp.arange(3, 15).reshape(2, 6)
    image = jnp.linspace(-1, 1, 2 * 3 * 16 * 16).reshape(2, 3, 16, 16)
    if family == "whisper":
        return {"input_features": jnp.linspace(-1, 1, 2 * 8 * 16).reshape(2, 8, 16), "decoder_input_ids": tokens}
    if family == "wav2vec2":
        return {"input_values": jnp.sin(jnp.arange(2 * 200.0)).reshape(2, 200)}
    if hasattr(config, "text_config"):
        return {"input_ids": tokens, "pixel_values": image}
    if hasattr(config, "image_size") or family in ("resnet", "regnet"):
        return {"pixel_values": image}
    return {"input_ids": tokens, **({"decoder_input_ids": tokens + 1} if config.is_encoder_decoder else {})}


def total(tree: Any) -> float:
    """The sum of the sizes of all floats in a tree."""
    floats = [np.asarray(x, np.float64) for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    return float(sum(np.abs(x).sum() for x in floats))


def numbers(family: str, class_name: str) -> tuple[float, float, float]:
    """The sums of the parameters, the outputs and the gradients of a tiny model."""
    config = small_config(family)
    model_class = getattr(importlib.import_module("transformers"), class_name)
    inputs = inputs_of(family, config)
    shapes = {"input_shape": (1, 16, 16, 3)} if "pixel_values" in inputs and "input_ids" not in inputs else {}
    if family == "whisper":
        shapes = {"input_shape": (1, 8, 16)}
    if family == "wav2vec2":
        shapes = {"input_shape": (1, 200)}
    model = model_class(config, seed=0, **shapes)

    def loss(params: Any) -> Any:
        leaves = jax.tree.leaves(model(**inputs, params=params).to_tuple())
        return sum((x.astype(jnp.float32) ** 2).mean() for x in leaves if jnp.issubdtype(x.dtype, jnp.floating))

    outputs = model(**inputs).to_tuple()
    return total(model.params), total(outputs), total(jax.grad(loss)(model.params))


def main(chosen: list[str]) -> None:
    """Prints a line for each family; an error is a line too, as both libraries must raise it."""
    for family, class_names in sorted(FLAX_MODEL_MAPPING_NAMES.items()):
        class_name = class_names[0] if isinstance(class_names, tuple) else class_names
        if chosen and family not in chosen:
            continue
        try:
            line = "params {:.17g} outputs {:.17g} grads {:.17g}".format(*numbers(family, class_name))
        except Exception as error:
            line = f"{type(error).__name__}: {str(error)[:300]!r}"
        print(family, line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
