"""Neural networks as Python objects, with the names of `flax.nnx`.

`from sonde import nnx` stands where `from flax import nnx` stood: the same names, arguments, results, initial values
and state layouts. Left out on purpose: `graph_updates=True`, Variables backed by array references, `nnx.bridge`.
"""

from sonde.nnx import filters as filterlib
from sonde.nnx import traversals
from sonde.nnx._kinds import has_data, is_data, register_data_type
from sonde.nnx.containers import Dict, List, Sequential
from sonde.nnx.eager_sharding import logical_axis_rules, use_eager_sharding, using_eager_sharding
from sonde.nnx.filters import All, Any, Everything, Not, Nothing, OfType, PathContains, PathIn, WithTag, to_predicate
from sonde.nnx.graph import (
    GraphDef,
    GraphState,
    as_pure,
    call,
    clone,
    flatten,
    graphdef,
    merge,
    pop,
    pure,
    set_metadata,
    split,
    state,
    unflatten,
    unpack,
    update,
    variables,
)
from sonde.nnx.graph_mode import set_graph_mode
from sonde.nnx.iteration import find_duplicates, iter_children, iter_graph
from sonde.nnx.mapping import map, recursive_map, with_vars
from sonde.nnx.metadata import VariableMetadata, with_metadata
from sonde.nnx.module import Module, iter_module_children, iter_modules
from sonde.nnx.pure_dict import replace_by_pure_dict, restore_int_paths, to_pure_dict
from sonde.nnx.pytree import Data, Object, Pytree, Static, check_pytree, data, dataclass, static
from sonde.nnx.rendering import display
from sonde.nnx.rng_tools import backup_keys, fork_rngs, reseed, restore_rngs, split_rngs, with_rngs
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
from sonde.nnx.variable import BatchStat, Cache, Intermediate, Param, Perturbation, Variable
from sonde.nnx.variable_names import register_variable_name, variable_name_from_type, variable_type_from_name
from sonde.nnx.views import view, view_info, with_attributes

# --- capture (nnx/capture*.py) ---

# --- layers (nnx/layers/) ---

# --- training (nnx/training/) ---

# --- transforms (nnx/transforms/) ---

__all__ = [
    "All",
    "Any",
    "BatchStat",
    "Cache",
    "Data",
    "Dict",
    "Everything",
    "FlatState",
    "GraphDef",
    "GraphState",
    "Intermediate",
    "List",
    "Module",
    "Not",
    "Nothing",
    "Object",
    "OfType",
    "Param",
    "PathContains",
    "PathIn",
    "Perturbation",
    "Pytree",
    "RngCount",
    "RngKey",
    "RngState",
    "RngStream",
    "Rngs",
    "Sequential",
    "State",
    "Static",
    "Variable",
    "VariableMetadata",
    "WithTag",
    "as_pure",
    "backup_keys",
    "call",
    "check_pytree",
    "clone",
    "data",
    "dataclass",
    "diff",
    "display",
    "filter_state",
    "filterlib",
    "find_duplicates",
    "flatten",
    "fork_rngs",
    "from_flat_state",
    "graphdef",
    "has_data",
    "is_data",
    "iter_children",
    "iter_graph",
    "iter_module_children",
    "iter_modules",
    "logical_axis_rules",
    "map",
    "map_state",
    "merge",
    "merge_state",
    "pop",
    "pure",
    "recursive_map",
    "register_data_type",
    "register_variable_name",
    "replace_by_pure_dict",
    "reseed",
    "restore_int_paths",
    "restore_rngs",
    "set_graph_mode",
    "set_metadata",
    "split",
    "split_rngs",
    "split_state",
    "state",
    "static",
    "to_flat_state",
    "to_predicate",
    "to_pure_dict",
    "traversals",
    "unflatten",
    "unpack",
    "update",
    "use_eager_sharding",
    "using_eager_sharding",
    "variable_name_from_type",
    "variable_type_from_name",
    "variables",
    "view",
    "view_info",
    "with_attributes",
    "with_metadata",
    "with_rngs",
    "with_vars",
]
