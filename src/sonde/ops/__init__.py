"""The arithmetic of layers as pure functions, written once for `sonde.nnx` and `sonde.linen`.

Arrays in, arrays out: no parameters, no state, no random streams. A layer is its parameters and one call from
here. Results equal Flax's; where its two faces compute differently, an option chooses.

One file per idea: `dense`, `conv`, `padding`, `embedding`, `pooling`, `norm`, `weight_norm`, `attention`,
`masks`, `grouped_attention`, `rotary`, `recurrent` (cells), `sequence` (their loop), `dropout`, `activations`,
`initializers`, `dtypes`, `checks`; `layer_options` says which attributes of layers are their options.
"""

from sonde.ops import activations as activations
from sonde.ops import initializers as initializers
from sonde.ops.activations import prelu as prelu
from sonde.ops.activations import soft_cap as soft_cap
from sonde.ops.attention import decode_step as decode_step
from sonde.ops.attention import dot_product_attention as dot_product_attention
from sonde.ops.attention import dot_product_attention_weights as dot_product_attention_weights
from sonde.ops.attention import fused_attention as fused_attention
from sonde.ops.attention import mix_values as mix_values
from sonde.ops.conv import conv as conv
from sonde.ops.conv import conv_local as conv_local
from sonde.ops.conv import conv_local_kernel_shape as conv_local_kernel_shape
from sonde.ops.conv import conv_transpose as conv_transpose
from sonde.ops.dense import dense as dense
from sonde.ops.dense import dense_general as dense_general
from sonde.ops.dense import einsum as einsum
from sonde.ops.dense import einsum_bias_shape as einsum_bias_shape
from sonde.ops.dense import low_rank as low_rank
from sonde.ops.dropout import dropout as dropout
from sonde.ops.dtypes import canonicalize_dtype as canonicalize_dtype
from sonde.ops.dtypes import promote_dtype as promote_dtype
from sonde.ops.embedding import attend as attend
from sonde.ops.embedding import embed as embed
from sonde.ops.grouped_attention import grouped_attention as grouped_attention
from sonde.ops.grouped_attention import head_results as head_results
from sonde.ops.grouped_attention import visible as visible
from sonde.ops.masks import combine_masks as combine_masks
from sonde.ops.masks import make_attention_mask as make_attention_mask
from sonde.ops.masks import make_causal_mask as make_causal_mask
from sonde.ops.norm import batch_norm as batch_norm
from sonde.ops.norm import group_count as group_count
from sonde.ops.norm import group_norm as group_norm
from sonde.ops.norm import instance_norm as instance_norm
from sonde.ops.norm import layer_norm as layer_norm
from sonde.ops.norm import moments as moments
from sonde.ops.norm import normalize as normalize
from sonde.ops.norm import rms_norm as rms_norm
from sonde.ops.pooling import avg_pool as avg_pool
from sonde.ops.pooling import max_pool as max_pool
from sonde.ops.pooling import min_pool as min_pool
from sonde.ops.pooling import pool as pool
from sonde.ops.recurrent import check_carry as check_carry
from sonde.ops.recurrent import conv_lstm as conv_lstm
from sonde.ops.recurrent import dense_gates as dense_gates
from sonde.ops.recurrent import gru as gru
from sonde.ops.recurrent import lstm as lstm
from sonde.ops.recurrent import mgu as mgu
from sonde.ops.recurrent import simple_rnn as simple_rnn
from sonde.ops.recurrent import split_gates as split_gates
from sonde.ops.rotary import Rotary as Rotary
from sonde.ops.rotary import rotary_frequencies as rotary_frequencies
from sonde.ops.rotary import rotary_scale as rotary_scale
from sonde.ops.rotary import rotary_tables as rotary_tables
from sonde.ops.rotary import rotate as rotate
from sonde.ops.sequence import flip_sequences as flip_sequences
from sonde.ops.sequence import run_sequence as run_sequence
from sonde.ops.weight_norm import initial_u as initial_u
from sonde.ops.weight_norm import spectral_norm as spectral_norm
from sonde.ops.weight_norm import weight_norm as weight_norm
