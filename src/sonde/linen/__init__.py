"""Neural networks as functions of their variables, with the names of `flax.linen`.

Replace `from flax import linen as nn` with `from sonde import linen as nn`: names, arguments, results, parameter trees
and initial values are the same. What is new: values sown inside any transform, Linen's or JAX's, arrive without
`variable_axes`. The import paths of Flax's own files, such as `linen.linear`, work too (`flax_names/import_paths.py`).
"""

from sonde._import_paths import hand_on
from sonde.linen import dtypes, initializers, kw_only_dataclasses
from sonde.linen.flax_names.import_paths import PATHS
from sonde.linen.initializers import ones, ones_init, zeros, zeros_init
from sonde.linen.layers.attention import (
    MultiHeadAttention,
    MultiHeadDotProductAttention,
    SelfAttention,
    dot_product_attention,
    dot_product_attention_weights,
)
from sonde.linen.layers.combinators import BatchApply, PReLU, Sequential
from sonde.linen.layers.conv import Conv, ConvLocal, ConvTranspose
from sonde.linen.layers.fp8 import (
    Fp8DirectDotGeneralOp,
    Fp8DotGeneral,
    Fp8DotGeneralOp,
    Fp8Einsum,
    NANOOFp8DotGeneralOp,
)
from sonde.linen.layers.linear import Dense, DenseGeneral, Einsum, Embed
from sonde.linen.layers.norm import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RMSNorm
from sonde.linen.layers.recurrent import (
    ConvLSTMCell,
    GRUCell,
    LSTMCell,
    MGUCell,
    OptimizedLSTMCell,
    RNNCellBase,
    SimpleCell,
)
from sonde.linen.layers.rnn import RNN, Bidirectional
from sonde.linen.layers.stochastic import Dropout
from sonde.linen.layers.weight_norm import SpectralNorm, WeightNorm
from sonde.linen.modules.attach import share_scope
from sonde.linen.modules.methods import (
    InterceptorContext,
    compact,
    compact_name_scope,
    disable_named_call,
    enable_named_call,
    intercept_methods,
    nowrap,
    override_named_call,
)
from sonde.linen.modules.module import Module, merge_param
from sonde.linen.modules.run import apply, init, init_with_output
from sonde.linen.modules.table import tabulate
from sonde.linen.sharding import logical, meta
from sonde.linen.sharding.logical import (
    LogicallyPartitioned,
    RulesFallback,
    get_logical_axis_rules,
    logical_axis_rules,
    logical_to_mesh,
    logical_to_mesh_axes,
    logical_to_mesh_sharding,
    set_logical_axis_rules,
    with_logical_constraint,
    with_logical_partitioning,
)
from sonde.linen.sharding.meta import (
    PARTITION_NAME,
    Partitioned,
    get_partition_spec,
    get_sharding,
    unbox,
    with_partitioning,
)
from sonde.linen.transforms.axes import In, Out, broadcast
from sonde.linen.transforms.branched import cond, switch
from sonde.linen.transforms.compiled import fold_rngs, jit
from sonde.linen.transforms.differentiated import custom_vjp, grad, jvp, value_and_grad, vjp
from sonde.linen.transforms.looped import remat_scan, scan, while_loop
from sonde.linen.transforms.mapped import vmap
from sonde.linen.transforms.named import named_call
from sonde.linen.transforms.recomputed import checkpoint, remat
from sonde.linen.transforms.rewritten import add_metadata_axis, map_variables
from sonde.linen.variables import frozen_dict
from sonde.linen.variables.filters import DenyList
from sonde.linen.variables.frozen_dict import FrozenDict, freeze, unfreeze
from sonde.linen.variables.scope import Scope, Variable
from sonde.ops.activations import (
    celu,
    elu,
    gelu,
    glu,
    hard_sigmoid,
    hard_silu,
    hard_swish,
    hard_tanh,
    leaky_relu,
    log_sigmoid,
    log_softmax,
    logsumexp,
    one_hot,
    relu,
    relu6,
    selu,
    sigmoid,
    silu,
    soft_sign,
    softmax,
    softplus,
    standardize,
    swish,
    tanh,
)
from sonde.ops.masks import combine_masks, make_attention_mask, make_causal_mask
from sonde.ops.pooling import avg_pool, max_pool, min_pool, pool

normalize = standardize
hand_on(__name__, PATHS)

__all__ = [
    "PARTITION_NAME",
    "RNN",
    "BatchApply",
    "BatchNorm",
    "Bidirectional",
    "Conv",
    "ConvLSTMCell",
    "ConvLocal",
    "ConvTranspose",
    "Dense",
    "DenseGeneral",
    "DenyList",
    "Dropout",
    "Einsum",
    "Embed",
    "Fp8DirectDotGeneralOp",
    "Fp8DotGeneral",
    "Fp8DotGeneralOp",
    "Fp8Einsum",
    "FrozenDict",
    "GRUCell",
    "GroupNorm",
    "In",
    "InstanceNorm",
    "InterceptorContext",
    "LSTMCell",
    "LayerNorm",
    "LogicallyPartitioned",
    "MGUCell",
    "Module",
    "MultiHeadAttention",
    "MultiHeadDotProductAttention",
    "NANOOFp8DotGeneralOp",
    "OptimizedLSTMCell",
    "Out",
    "PReLU",
    "Partitioned",
    "RMSNorm",
    "RNNCellBase",
    "RulesFallback",
    "Scope",
    "SelfAttention",
    "Sequential",
    "SimpleCell",
    "SpectralNorm",
    "Variable",
    "WeightNorm",
    "add_metadata_axis",
    "apply",
    "avg_pool",
    "broadcast",
    "celu",
    "checkpoint",
    "combine_masks",
    "compact",
    "compact_name_scope",
    "cond",
    "custom_vjp",
    "disable_named_call",
    "dot_product_attention",
    "dot_product_attention_weights",
    "dtypes",
    "elu",
    "enable_named_call",
    "fold_rngs",
    "freeze",
    "frozen_dict",
    "gelu",
    "get_logical_axis_rules",
    "get_partition_spec",
    "get_sharding",
    "glu",
    "grad",
    "hard_sigmoid",
    "hard_silu",
    "hard_swish",
    "hard_tanh",
    "init",
    "init_with_output",
    "initializers",
    "intercept_methods",
    "jit",
    "jvp",
    "kw_only_dataclasses",
    "leaky_relu",
    "log_sigmoid",
    "log_softmax",
    "logical",
    "logical_axis_rules",
    "logical_to_mesh",
    "logical_to_mesh_axes",
    "logical_to_mesh_sharding",
    "logsumexp",
    "make_attention_mask",
    "make_causal_mask",
    "map_variables",
    "max_pool",
    "merge_param",
    "meta",
    "min_pool",
    "named_call",
    "normalize",
    "nowrap",
    "one_hot",
    "ones",
    "ones_init",
    "override_named_call",
    "pool",
    "relu",
    "relu6",
    "remat",
    "remat_scan",
    "scan",
    "selu",
    "set_logical_axis_rules",
    "share_scope",
    "sigmoid",
    "silu",
    "soft_sign",
    "softmax",
    "softplus",
    "standardize",
    "swish",
    "switch",
    "tabulate",
    "tanh",
    "unbox",
    "unfreeze",
    "value_and_grad",
    "vjp",
    "vmap",
    "while_loop",
    "with_logical_constraint",
    "with_logical_partitioning",
    "with_partitioning",
    "zeros",
    "zeros_init",
]
