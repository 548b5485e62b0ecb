"""Names of `sonde.nnx` that are loaded on first use, listed under the module that has them.

`import sonde.nnx` then costs little more than `import jax`: layers, transforms and training (with optax) come later.
"""

from __future__ import annotations

_MODULES = {
    "sonde.nnx.graph_contexts": (
        "MergeContext SplitContext UpdateContext current_update_context merge_context split_context update_context"
    ),
    "sonde.nnx.layers.activations": "PReLU",
    "sonde.nnx.layers.attention": "MultiHeadAttention dot_product_attention",
    "sonde.nnx.layers.convolution": "Conv ConvTranspose",
    "sonde.nnx.layers.grouped_attention": "GroupedAttention KeyValues",
    "sonde.nnx.layers.linear": "Einsum Embed Linear LinearGeneral",
    "sonde.nnx.layers.lora": "LoRA LoRALinear LoRAParam",
    "sonde.nnx.layers.mlp": "MLP",
    "sonde.nnx.layers.normalization": "BatchNorm GroupNorm InstanceNorm LayerNorm RMSNorm",
    "sonde.nnx.layers.offset_norm": "OffsetRMSNorm",
    "sonde.nnx.layers.recurrent_cells": "GRUCell LSTMCell OptimizedLSTMCell RNNCellBase SimpleCell",
    "sonde.nnx.layers.rotary": "RoPE dot_product_attention_with_rope",
    "sonde.nnx.layers.sequences": "Bidirectional RNN",
    "sonde.nnx.layers.stochastic": "Dropout",
    "sonde.nnx.layers.weight_normalization": "SpectralNorm WeightNorm",
    "sonde.nnx.node_states": "NodeStates from_tree to_tree",
    "sonde.nnx.rendering": "display",
    "sonde.nnx.rng_tools": "backup_keys fork_rngs reseed restore_rngs split_rngs with_rngs",
    "sonde.nnx.sharding": (
        "PARTITION_NAME abstract_with_sharding as_abstract get_abstract_model get_named_sharding "
        "get_partition_spec with_partitioning"
    ),
    "sonde.nnx.table": "tabulate",
    "sonde.nnx.training.ema": "EMA",
    "sonde.nnx.training.metrics": "Metric MultiMetric",
    "sonde.nnx.training.optimizer": "ModelAndOptimizer OptArray OptState OptVariable Optimizer",
    "sonde.nnx.training.train_state": "TrainState",
    "sonde.nnx.trees": "prefix",
    "sonde.nnx.transforms.prefixes": "Carry DiffState StateAxes StateSharding",
    "sonde.nnx.transforms.abstract": "eval_shape make_jaxpr",
    "sonde.nnx.transforms.axis_metadata": "transform_metadata",
    "sonde.nnx.transforms.branches": "cond switch",
    "sonde.nnx.transforms.checked": "checkify",
    "sonde.nnx.transforms.jit": "cached_partial jit jit_partial",
    "sonde.nnx.transforms.custom_rules": "custom_vjp",
    "sonde.nnx.transforms.derivatives": "grad jvp value_and_grad vjp",
    "sonde.nnx.transforms.loops": "fori_loop while_loop",
    "sonde.nnx.transforms.mapped": "pmap vmap",
    "sonde.nnx.transforms.rematerialised": "checkpoint remat",
    "sonde.nnx.transforms.scanned": "scan",
    "sonde.nnx.transforms.sharded": "shard_map",
    "sonde.nnx.views": "view view_info with_attributes",
    "sonde.ops.activations": (
        "celu elu gelu glu hard_sigmoid hard_silu hard_swish hard_tanh identity leaky_relu log_sigmoid "
        "log_softmax logsumexp one_hot relu relu6 selu sigmoid silu soft_sign softmax softplus standardize "
        "swish tanh"
    ),
    "sonde.ops.masks": "combine_masks make_attention_mask make_causal_mask",
    "sonde.ops.named_initializers": "Initializer",
    "sonde.ops.pooling": "avg_pool max_pool min_pool pool",
    "sonde.ops.sequence": "flip_sequences",
}

#: Where each name is: a module, and the name of an attribute of it; None for the module itself.
LATER: dict[str, tuple[str, str | None]] = {
    "compat": ("sonde.nnx.compat", None),
    "initializers": ("sonde.ops.named_initializers", None),
    "metrics": ("sonde.nnx.training.metrics", None),
    "optimizer": ("sonde.nnx.training.optimizer", None),
}
LATER |= {name: (module, name) for module, names in _MODULES.items() for name in names.split()}
