"""The import paths of Flax's own files."""

from __future__ import annotations

import importlib
import pkgutil
import warnings

import flax.typing
import pytest

from sonde import nnx
from sonde.linen.flax_names.import_paths import PATHS as LINEN
from sonde.nnx.flax_names.import_paths import PATHS


@pytest.mark.parametrize("path", PATHS)
def test_paths_of_flax_can_be_imported(path):
    module = importlib.import_module(f"sonde.nnx.{path}")
    with pytest.raises(AttributeError, match=f"module 'sonde.nnx.{path}' has no attribute 'nonsense'"):
        _ = module.nonsense


def test_what_the_paths_hand_on():
    from sonde.nnx.graph import Key, split
    from sonde.nnx.module import GraphDef, Module, first_from
    from sonde.nnx.nn import initializers
    from sonde.nnx.nn.attention import dot_product_attention_weights
    from sonde.nnx.nn.linear import Conv, default_kernel_init
    from sonde.nnx.transforms.compilation import StateSharding, jit
    from sonde.nnx.variablelib import Param, use_eager_sharding

    assert (split, GraphDef, Module, Conv, jit, StateSharding) == (
        nnx.split,
        nnx.GraphDef,
        nnx.Module,
        nnx.Conv,
        nnx.jit,
        nnx.StateSharding,
    )
    assert (Param, use_eager_sharding, initializers.ones) == (nnx.Param, nnx.use_eager_sharding, nnx.initializers.ones)
    assert callable(dot_product_attention_weights) and callable(default_kernel_init) and Key
    assert first_from(None, 3, error_msg="none") == 3
    with pytest.raises(ValueError, match="none"):
        first_from(None, error_msg="none")


def test_types_for_annotations_are_under_every_path_where_flax_has_them():
    # Markers of Flax's own code, of which ours has others.
    others = {"BaseConfigContext", "HashableMapping", "PytreeDeque", "SizeBytes", "ShapeDtype", "FrozenDict"}
    types = {n for n in vars(flax.typing) if n[0].isupper() and len(n) > 1 and n not in others}
    types -= {"Any", "Callable", "Generic", "Hashable", "Iterator", "Mapping", "Optional", "Protocol", "Sequence"}
    types -= {"TypeGuard", "TypeVar", "Union", "HA", "HB", "TupleArg", "In", "Out"}
    found = []
    for face, paths in (("nnx", PATHS), ("linen", LINEN)):
        for path in paths:
            ours = importlib.import_module(f"sonde.{face}.{path}")
            if path in ("object", "wrappers"):  # of other releases of Flax
                continue
            theirs = vars(importlib.import_module(f"flax.{face}.{path}"))
            found += [(face, path, name) for name in types & set(theirs)]
            assert not [name for name in types & set(theirs) if not hasattr(ours, name)], path
    assert len(found) > 50


def test_names_of_flax_files_are_under_their_paths_or_known_to_be_missing():
    package, missing = importlib.import_module("flax.nnx"), set()
    for module in pkgutil.walk_packages(package.__path__, "flax.nnx."):
        with warnings.catch_warnings(action="ignore"):
            theirs = importlib.import_module(module.name)
        ours = importlib.import_module(module.name.replace("flax", "sonde", 1))
        own = [n for n, v in vars(theirs).items() if getattr(v, "__module__", None) == theirs.__name__]
        missing |= {n for n in own if not (n.startswith("_") or len(n) <= 2 or hasattr(ours, n))}
    assert missing <= NOT_OURS, missing - NOT_OURS


# What Flax's own transforms, graphs, Variables, tables and reprs are made of.
NOT_OURS = {
    *("ModuleState", "has_setup", "get_col_name", "current_linen_module", "linen_rngs_dict"),
    *("ExtractIndex", "GraphDefState", "Mask", "Opaque", "OrderedDict", "PrefixMapping", "Updates", "apply_updates"),
    *("broadcast_prefix", "broadcast_prefix2", "broadcast_prefix_map", "check_consistent_aliasing", "check_prefix"),
    *("check_consistent_aliasing2", "check_no_aliases", "check_same_variables", "copy_var_structure", "labeled"),
    *("default_split_fn", "filter_kwargs", "find", "from_tree2", "get_updates", "insert", "is_tree_node", "mask_at"),
    *("merge_tree_node", "replace_at", "slice_at", "snapshot", "to_masked", "to_tree2", "treemap_copy_args"),
    *("update_carry_variables", "variable_changed", "HasTag", "ArrayRefDef", "ArrayRefOutput", "AuxData", "DataElem"),
    *("GRAPH_CONTEXT", "GenericPytree", "GraphContext", "GraphNodeImpl", "IndexesPytreeDef", "KeyT", "LEAF_ATTR"),
    *("Leaf", "LeafAttr", "NODE_ATTR", "NO_UPDATE", "NoUpdate", "NodeAttr", "NodeImplBase", "PYTREE_NODE_IMPL"),
    *("PythonRefMap", "PytreeNodeImpl", "REPEATED", "Repeated", "StaticCache", "StaticElem", "UpdateContextManager"),
    *("get_node_impl", "get_node_impl_for_type", "graph_pop", "is_node_module", "is_node_type", "jax_to_nnx_path"),
    *("register_graph_node_type", "register_pytree_node_type", "static_cache", "ModuleDefApply", "UUIDManager"),
    *("RNNBase", "modified_orthogonal", "CallableProxy", "DelayedAccessor", "GetAttr", "GetItem", "ArrayRepr"),
    *("AttributeStatus", "MutableArrayRepr", "OBJECT_CONTEXT", "ObjectContext", "ObjectMeta", "PytreeState"),
    *("VariableRepr", "COLOR", "Color", "NO_COLOR", "REPR_CONTEXT", "ReprContext", "colorized", "supports_color"),
    *("Fargs", "KeylessInitializer", "NestedStateRepr", "create_path_filters", "NoneDumper", "ObjectInfo"),
    *("SimpleObjectRepr", "SizeBytes", "filter_rng_streams", "to_opt_state", "Stage", "Broadcasted", "StrInt"),
    *("LiftedModule", "ValueMetadata", "resolve_kwargs", "render_object_constructor", "CustomVjpFnWrapper"),
    *("AbstractVariable", "GetVariable", "HijaxVariable", "HijaxVariableMeta", "NewVariable", "SetVariable"),
    *("VARIABLE_CONTEXT", "VariableContext", "VariableEffect", "VariableMeta", "VariableQDD", "get_variable_p"),
    *("MISSING", "is_array_ref", "new_variable_p", "set_variable_p", "variable_effect", "SimpleCustomVjp"),
    *(
        f"{way}{name}"
        for way in ("", "Simple")
        for name in (
            *(
                "BwdFn",
                "FwdFn",
                "GradFn",
                "JvpFn",
                "VjpFn",
                "RematFn",
                "CustomVjpFn",
                "JitFn",
                "JitWrapped",
                "ShardMapFn",
            ),
            *(
                "Compiled",
                "Lowered",
                "Traced",
                "JitPartialFn",
                "JitPartialWrapped",
                "PartialCompiled",
                "PartialLowered",
            ),
            *("PartialTraced", "ForiLoopBodyFn", "PmapFn", "ScanFn", "VmapFn", "WhileLoopBodyFn", "WhileLoopCondFn"),
            *("CheckifyFn", "CondFn", "EvalShapeFn", "MakeJaxprFn"),
        )
    ),
}
