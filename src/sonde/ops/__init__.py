"""The arithmetic of layers as pure functions, written once for `sonde.nnx` and `sonde.linen`.

Arrays in, arrays out: no parameters, no state, no random streams. A layer is its parameters and one call from
here. Results equal Flax's; where its two faces compute differently, an option chooses.

One file per idea: `dense`, `conv`, `padding`, `embedding`, `pooling`, `norm`, `weight_norm`, `attention`,
`masks`, `grouped_attention`, `rotary`, `soft_cap`, `recurrent` (cells), `sequence` (their loop), `dropout`, `lora`,
`activations`, `initializers`, `dtypes`, `checks`.
"""

from sonde.ops import activations, initializers
from sonde.ops.activations import prelu
from sonde.ops.attention import (
    decode_step,
    dot_product_attention,
    dot_product_attention_weights,
    fused_attention,
    mix_values,
)
from sonde.ops.conv import conv, conv_local, conv_local_kernel_shape, conv_transpose
from sonde.ops.dense import dense, dense_general, einsum, einsum_bias_shape
from sonde.ops.dropout import dropout
from sonde.ops.dtypes import canonicalize_dtype, promote_dtype
from sonde.ops.embedding import attend, embed
from sonde.ops.grouped_attention import grouped_attention, head_results, visible
from sonde.ops.lora import low_rank
from sonde.ops.masks import combine_masks, make_attention_mask, make_causal_mask
from sonde.ops.norm import (
    batch_norm,
    group_count,
    group_norm,
    instance_norm,
    layer_norm,
    moments,
    normalize,
    rms_norm,
)
from sonde.ops.pooling import avg_pool, max_pool, min_pool, pool
from sonde.ops.recurrent import check_carry, conv_lstm, dense_gates, gru, lstm, mgu, simple_rnn, split_gates
from sonde.ops.rotary import Rotary, rotary_frequencies, rotary_scale, rotary_tables, rotate
from sonde.ops.sequence import flip_sequences, run_sequence, scan_loop
from sonde.ops.soft_cap import soft_cap
from sonde.ops.weight_norm import initial_u, spectral_norm, weight_norm

__all__ = [
    "Rotary",
    "activations",
    "attend",
    "avg_pool",
    "batch_norm",
    "canonicalize_dtype",
    "check_carry",
    "combine_masks",
    "conv",
    "conv_local",
    "conv_local_kernel_shape",
    "conv_lstm",
    "conv_transpose",
    "decode_step",
    "dense",
    "dense_gates",
    "dense_general",
    "dot_product_attention",
    "dot_product_attention_weights",
    "dropout",
    "einsum",
    "einsum_bias_shape",
    "embed",
    "flip_sequences",
    "fused_attention",
    "group_count",
    "group_norm",
    "grouped_attention",
    "gru",
    "head_results",
    "initial_u",
    "initializers",
    "instance_norm",
    "layer_norm",
    "low_rank",
    "lstm",
    "make_attention_mask",
    "make_causal_mask",
    "max_pool",
    "mgu",
    "min_pool",
    "mix_values",
    "moments",
    "normalize",
    "pool",
    "prelu",
    "promote_dtype",
    "rms_norm",
    "rotary_frequencies",
    "rotary_scale",
    "rotary_tables",
    "rotate",
    "run_sequence",
    "scan_loop",
    "simple_rnn",
    "soft_cap",
    "spectral_norm",
    "split_gates",
    "visible",
    "weight_norm",
]
