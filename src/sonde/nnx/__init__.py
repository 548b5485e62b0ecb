"""Neural networks as Python objects, with the names of `flax.nnx`.

Replace `from flax import nnx` with `from sonde import nnx`: names, arguments, results, initial values and state layouts
are the same. `bridge` mixes these Modules with those of `sonde.linen` and of Flax.

Layers, transforms and training are loaded when they are first used (`later.py`); the import paths of Flax's own files,
such as `nnx.nn.linear`, work too (`flax_paths.py`).
"""

import importlib
import typing

from sonde._handing_on import hand_on
from sonde.nnx import training, transforms, traversals
from sonde.nnx.attribute_status import Data, Static, data, static
from sonde.nnx.calling import call
from sonde.nnx.capture import capture, capture_grads
from sonde.nnx.containers import Dict, List, Sequential
from sonde.nnx.eager_sharding import logical_axis_rules, use_eager_sharding, using_eager_sharding
from sonde.nnx.filters import All, Any, Everything, Not, Nothing, OfType, PathContains, PathIn, WithTag, to_predicate
from sonde.nnx.flax_paths import PATHS
from sonde.nnx.graph import as_pure, clone, flatten, graphdef, merge, pure, split, state, unflatten, unpack, variables
from sonde.nnx.graph_def import GraphDef, GraphState
from sonde.nnx.graph_mode import set_graph_mode, set_graph_updates
from sonde.nnx.iteration import find_duplicates, iter_children, iter_graph
from sonde.nnx.kinds import has_data, is_data, register_data_type
from sonde.nnx.later import LATER
from sonde.nnx.mapping import map, recursive_map, vars_as, with_vars
from sonde.nnx.metadata import VariableMetadata, with_metadata
from sonde.nnx.module import Module, iter_module_children, iter_modules
from sonde.nnx.popping import pop
from sonde.nnx.pure_dict import replace_by_pure_dict, restore_int_paths, to_pure_dict
from sonde.nnx.pytree import Object, Pytree, check_pytree, dataclass
from sonde.nnx.rngs import RngCount, RngKey, Rngs, RngState, RngStream
from sonde.nnx.states import (
    FlatState,
    State,
    diff,
    filter_state,
    from_flat_state,
    map_state,
    merge_state,
    split_state,
    to_flat_state,
)
from sonde.nnx.updating import set_metadata, update
from sonde.nnx.variable import Variable
from sonde.nnx.variable_defaults import var_defaults
from sonde.nnx.variable_kinds import BatchStat, Cache, Intermediate, Param, Perturbation
from sonde.nnx.variable_names import register_variable_name, variable_name_from_type, variable_type_from_name

if typing.TYPE_CHECKING:
    from sonde.nnx import compat
    from sonde.nnx.graph_contexts import (
        MergeContext,
        SplitContext,
        UpdateContext,
        current_update_context,
        merge_context,
        split_context,
        update_context,
    )
    from sonde.nnx.layers.activations import PReLU
    from sonde.nnx.layers.attention import MultiHeadAttention, dot_product_attention
    from sonde.nnx.layers.convolution import Conv, ConvTranspose
    from sonde.nnx.layers.grouped_attention import GroupedAttention, KeyValues
    from sonde.nnx.layers.linear import Einsum, Embed, Linear, LinearGeneral
    from sonde.nnx.layers.lora import LoRA, LoRALinear, LoRAParam
    from sonde.nnx.layers.mlp import MLP
    from sonde.nnx.layers.normalization import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RMSNorm
    from sonde.nnx.layers.offset_norm import OffsetRMSNorm
    from sonde.nnx.layers.recurrent_cells import GRUCell, LSTMCell, OptimizedLSTMCell, RNNCellBase, SimpleCell
    from sonde.nnx.layers.rotary import RoPE, dot_product_attention_with_rope
    from sonde.nnx.layers.sequences import RNN, Bidirectional
    from sonde.nnx.layers.stochastic import Dropout
    from sonde.nnx.layers.weight_normalization import SpectralNorm, WeightNorm
    from sonde.nnx.node_states import NodeStates, from_tree, to_tree
    from sonde.nnx.rendering import display
    from sonde.nnx.rng_tools import backup_keys, fork_rngs, reseed, restore_rngs, split_rngs, with_rngs
    from sonde.nnx.sharding import (
        PARTITION_NAME,
        abstract_with_sharding,
        as_abstract,
        get_abstract_model,
        get_named_sharding,
        get_partition_spec,
        with_partitioning,
    )
    from sonde.nnx.table import tabulate
    from sonde.nnx.training import metrics, optimizer
    from sonde.nnx.training.ema import EMA
    from sonde.nnx.training.metrics import Metric, MultiMetric
    from sonde.nnx.training.optimizer import ModelAndOptimizer, OptArray, Optimizer, OptState, OptVariable
    from sonde.nnx.training.train_state import TrainState
    from sonde.nnx.transforms.abstract import eval_shape, make_jaxpr
    from sonde.nnx.transforms.axis_metadata import transform_metadata
    from sonde.nnx.transforms.branches import cond, switch
    from sonde.nnx.transforms.checked import checkify
    from sonde.nnx.transforms.custom_rules import custom_vjp
    from sonde.nnx.transforms.derivatives import grad, jvp, value_and_grad, vjp
    from sonde.nnx.transforms.jit import cached_partial, jit, jit_partial
    from sonde.nnx.transforms.loops import fori_loop, while_loop
    from sonde.nnx.transforms.mapped import pmap, vmap
    from sonde.nnx.transforms.prefixes import Carry, DiffState, StateAxes, StateSharding
    from sonde.nnx.transforms.rematerialised import checkpoint, remat
    from sonde.nnx.transforms.scanned import scan
    from sonde.nnx.transforms.sharded import shard_map
    from sonde.nnx.trees import prefix
    from sonde.nnx.views import view, view_info, with_attributes
    from sonde.ops import named_initializers as initializers
    from sonde.ops.activations import (
        celu,
        elu,
        gelu,
        glu,
        hard_sigmoid,
        hard_silu,
        hard_swish,
        hard_tanh,
        identity,
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
    from sonde.ops.named_initializers import Initializer
    from sonde.ops.pooling import avg_pool, max_pool, min_pool, pool
    from sonde.ops.sequence import flip_sequences

A = typing.TypeVar("A")
M = typing.TypeVar("M", bound=Module)
#: What `nnx.split` returns when it is given no filters.
PureState: typing.TypeAlias = tuple[GraphDef[A], State[typing.Any, typing.Any]]
#: An old name, from when states held something other than Variables.
VariableState = Variable

hand_on(__name__, PATHS)


def __getattr__(name: str) -> typing.Any:
    if name not in LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    where, attribute = LATER[name]
    module = importlib.import_module(where)
    found = module if attribute is None else getattr(module, attribute)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *LATER})


__all__ = [
    "EMA",
    "MLP",
    "PARTITION_NAME",
    "RNN",
    "A",
    "All",
    "Any",
    "BatchNorm",
    "BatchStat",
    "Bidirectional",
    "Cache",
    "Carry",
    "Conv",
    "ConvTranspose",
    "Data",
    "Dict",
    "DiffState",
    "Dropout",
    "Einsum",
    "Embed",
    "Everything",
    "FlatState",
    "GRUCell",
    "GraphDef",
    "GraphState",
    "GroupNorm",
    "GroupedAttention",
    "Initializer",
    "InstanceNorm",
    "Intermediate",
    "KeyValues",
    "LSTMCell",
    "LayerNorm",
    "Linear",
    "LinearGeneral",
    "List",
    "LoRA",
    "LoRALinear",
    "LoRAParam",
    "M",
    "MergeContext",
    "Metric",
    "ModelAndOptimizer",
    "Module",
    "MultiHeadAttention",
    "MultiMetric",
    "NodeStates",
    "Not",
    "Nothing",
    "Object",
    "OfType",
    "OffsetRMSNorm",
    "OptArray",
    "OptState",
    "OptVariable",
    "OptimizedLSTMCell",
    "Optimizer",
    "PReLU",
    "Param",
    "PathContains",
    "PathIn",
    "Perturbation",
    "PureState",
    "Pytree",
    "RMSNorm",
    "RNNCellBase",
    "RngCount",
    "RngKey",
    "RngState",
    "RngStream",
    "Rngs",
    "RoPE",
    "Sequential",
    "SimpleCell",
    "SpectralNorm",
    "SplitContext",
    "State",
    "StateAxes",
    "StateSharding",
    "Static",
    "TrainState",
    "UpdateContext",
    "Variable",
    "VariableMetadata",
    "VariableState",
    "WeightNorm",
    "WithTag",
    "abstract_with_sharding",
    "as_abstract",
    "as_pure",
    "avg_pool",
    "backup_keys",
    "cached_partial",
    "call",
    "capture",
    "capture_grads",
    "celu",
    "check_pytree",
    "checkify",
    "checkpoint",
    "clone",
    "combine_masks",
    "compat",
    "cond",
    "current_update_context",
    "custom_vjp",
    "data",
    "dataclass",
    "diff",
    "display",
    "dot_product_attention",
    "dot_product_attention_with_rope",
    "elu",
    "eval_shape",
    "filter_state",
    "find_duplicates",
    "flatten",
    "flip_sequences",
    "fori_loop",
    "fork_rngs",
    "from_flat_state",
    "from_tree",
    "gelu",
    "get_abstract_model",
    "get_named_sharding",
    "get_partition_spec",
    "glu",
    "grad",
    "graphdef",
    "hard_sigmoid",
    "hard_silu",
    "hard_swish",
    "hard_tanh",
    "has_data",
    "identity",
    "initializers",
    "is_data",
    "iter_children",
    "iter_graph",
    "iter_module_children",
    "iter_modules",
    "jit",
    "jit_partial",
    "jvp",
    "leaky_relu",
    "log_sigmoid",
    "log_softmax",
    "logical_axis_rules",
    "logsumexp",
    "make_attention_mask",
    "make_causal_mask",
    "make_jaxpr",
    "map",
    "map_state",
    "max_pool",
    "merge",
    "merge_context",
    "merge_state",
    "metrics",
    "min_pool",
    "one_hot",
    "optimizer",
    "pmap",
    "pool",
    "pop",
    "prefix",
    "pure",
    "recursive_map",
    "register_data_type",
    "register_variable_name",
    "relu",
    "relu6",
    "remat",
    "replace_by_pure_dict",
    "reseed",
    "restore_int_paths",
    "restore_rngs",
    "scan",
    "selu",
    "set_graph_mode",
    "set_graph_updates",
    "set_metadata",
    "shard_map",
    "sigmoid",
    "silu",
    "soft_sign",
    "softmax",
    "softplus",
    "split",
    "split_context",
    "split_rngs",
    "split_state",
    "standardize",
    "state",
    "static",
    "swish",
    "switch",
    "tabulate",
    "tanh",
    "to_flat_state",
    "to_predicate",
    "to_pure_dict",
    "to_tree",
    "training",
    "transform_metadata",
    "transforms",
    "traversals",
    "unflatten",
    "unpack",
    "update",
    "update_context",
    "use_eager_sharding",
    "using_eager_sharding",
    "value_and_grad",
    "var_defaults",
    "variable_name_from_type",
    "variable_type_from_name",
    "variables",
    "vars_as",
    "view",
    "view_info",
    "vjp",
    "vmap",
    "while_loop",
    "with_attributes",
    "with_metadata",
    "with_partitioning",
    "with_rngs",
    "with_vars",
]
