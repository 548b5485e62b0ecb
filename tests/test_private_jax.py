"""What Sonde expects of JAX's internals, name by name: a new JAX fails here first, with a clear message."""

import ast
import importlib
import importlib.util
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sonde

# A dotted name below jax, the arguments that a function must take (None: any), and what it is needed for.
EXPECTED: list[tuple[str, str, tuple[str, ...] | None, str]] = [
    ("_src.config", "eager_constant_folding", None, "is on under `ensure_compile_time_eval`"),
    ("_src.core", "eval_jaxpr", ("jaxpr", "consts"), "runs a jaxpr under the current trace"),
    ("_src.ad_checkpoint", "RematTraced", ("jaxpr", "policy"), "is a call of jax.checkpoint with jax_remat3"),
    ("_src.hijax", "call_hi_primitive_p", None, "calls what carries its own rules, with `to_lojax`"),
    ("_src.hijax", "CustomVJPTraced", None, "is a call of a custom_vjp function with jax_custom_vjp3"),
    ("_src.lax.control_flow.loops", "Scan3", None, "is a scan with jax_scan3"),
    ("_src.interpreters.remat", "rules", None, "has the rules of jax_remat3"),
    ("_src.lax.lax", "_convert_element_type", None, "converts a value to a type, weak ones too"),
    ("_src.core", "trace_ctx", None, "has the current trace, and sets it"),
    ("_src.core", "Trace", None, "is what a capture's own trace derives from"),
    ("_src.core", "mapped_aval", ("size", "axis", "aval"), "gives the type of one element along an axis"),
    ("_src.core", "set_current_trace", None, "sets the trace that primitives go to"),
    ("_src.core", "Literal", None, "is a constant in a jaxpr, with `val` and `aval`"),
    ("_src.dtypes", "ExtendedDType", None, "is what a dtype with rules of its own derives from"),
    ("_src.earray", "EArray", None, "is an array of such a dtype"),
    ("_src.interpreters.pxla", "global_result_handlers", None, "makes arrays of the results of a program"),
    ("_src.effects", "lowerable_effects", None, "is a list of effects that may be lowered, with `add_type`"),
    ("_src.effects", "partial_eval_kept_effects", None, "is a list of effects that partial evaluation keeps"),
    ("_src.effects", "remat_allowed_effects", None, "is a list of effects that remat takes"),
    ("_src.linear_util", "wrap_init", ("f",), "makes the functions that custom derivatives are bound with"),
    ("_src.interpreters.partial_eval", "new_eqn_recipe", ("trace", "in_tracers", "out_tracers"), "keeps equations"),
    ("_src.interpreters.partial_eval", "EffectHandle", ("parents", "recipe"), "keeps an equation that is not used"),
    ("_src.interpreters.partial_eval", "JaxprTracer", None, "is a tangent in reverse mode, with `is_known`"),
    ("_src.interpreters.partial_eval", "partial_eval_jaxpr_nounits", None, "says what is known of a loop"),
    ("_src.interpreters.partial_eval", "partial_eval_jaxpr_custom_rules", None, "has the rules of remat"),
    ("_src.interpreters.partial_eval", "custom_partial_eval_rules", None, "has the rules of partial evaluation"),
    ("_src.interpreters.partial_eval", "dce_rules", None, "has the rules of dead-code elimination"),
    ("_src.interpreters.partial_eval", "convert_constvars_jaxpr", None, "makes inputs of constants"),
    ("_src.interpreters.ad", "primitive_linearizations", None, "has the rules of linearization"),
    ("_src.interpreters.batching", "batch_jaxpr", ("closed_jaxpr", "axis_data", "in_batched"), "says what is mapped"),
    ("interpreters.batching", "broadcast", ("x", "sz", "axis", "mesh_axis"), "repeats what is not mapped"),
    ("interpreters.batching", "fancy_primitive_batchers", None, "has the batching rules that know the axis"),
    ("_src.lax.control_flow.loops", "scan_p", None, "is the primitive of scan"),
    ("_src.lax.control_flow.loops", "while_p", None, "is the primitive of while_loop"),
    ("_src.lax.control_flow.conditionals", "cond_p", None, "is the primitive of cond and switch"),
    ("_src.ad_checkpoint", "remat_p", None, "is the primitive of checkpoint"),
    ("_src.pjit", "jit_p", None, "is the primitive of jit"),
    ("_src.pjit", "_infer_params", ("fun",), "is where jit looks for a trace"),
    ("_src.interpreters.partial_eval", "trace_to_jaxpr", None, "is where other transforms look for a trace"),
    ("_src.api_util", "debug_info", ("traced_for", "fun", "args", "kwargs"), "describes a call before it is traced"),
    ("_src.linear_util", "DebugInfo", None, "is that description, a tuple that traces keep"),
    ("_src.tree_util", "tracing_registry", None, "takes the arguments of traced functions apart"),
    ("_src.sharding_impls", "set_mesh", None, "is a class that refuses a mesh under a trace"),
    ("_src.shard_map", "shard_map_p", None, "is the primitive of shard_map"),
    ("_src.custom_batching", "custom_vmap_p", None, "is the primitive of custom_vmap"),
    ("_src.callback", "pure_callback_p", None, "calls a function of the host, with `callback` and `result_avals`"),
    ("_src.callback", "io_callback_p", None, "does so too"),
    ("_src.debugging", "debug_callback_p", None, "calls one that returns nothing"),
    ("_src.debugging", "debug_print_p", None, "prints"),
    ("_src.source_info_util", "current", (), "is where the running code is"),
    ("_src.source_info_util", "is_user_filename", ("filename",), "tells JAX's own files from others"),
    ("_src.source_info_util", "user_frames", ("traceback",), "has the lines that led to an equation"),
    ("_src.source_info_util", "Transform", ("name",), "is in the scopes of equations that a transform has made"),
    ("_src.source_info_util", "current_name_stack", (), "has the scopes that are open"),
    ("_src.util", "weakref_cache_key_types", None, "is the set of types that caches hold weakly"),
    ("_src.source_info_util", "NameStack", ("stack",), "is the scopes of an equation"),
    ("_src.source_info_util", "SourceInfo", ("traceback", "name_stack"), "is where an equation was made"),
    ("_src.source_info_util", "user_context", None, "opens the scopes of an equation that is run again"),
    ("_src.source_info_util", "user_frames", None, "lists the lines that made an equation"),
    ("_src.source_info_util", "extend_name_stack", ("name",), "opens a scope"),
    ("_src.ad_checkpoint", "_trace_to_jaxpr", None, "is where checkpoint looks for a trace"),
    ("_src.callback", "io_callback_p", None, "is the primitive of io_callback"),
    ("_src.callback", "pure_callback_p", None, "is the primitive of pure_callback"),
    ("_src.callback", "__name__", None, "is the name under which callbacks log"),
    ("_src.core", "Jaxpr", None, "is a traced program"),
    ("_src.core", "JaxprEqn", None, "is an equation of it"),
    ("_src.core", "Primitive", None, "is what a site is an instance of"),
    ("_src.core", "ShapedArray", None, "is the type of an array"),
    ("_src.core", "Tracer", None, "is what a traced function works with"),
    ("_src.core", "Var", None, "is a variable of a jaxpr"),
    ("_src.core", "eval_trace", None, "is the trace that computes"),
    ("_src.core", "full_lower", ("val",), "takes a value out of the tracers that do nothing with it"),
    ("_src.core", "no_effects", None, "is the set without effects"),
    ("_src.core", "physical_aval", ("aval",), "is the type that a dtype of its own is stored as"),
    ("_src.core", "typeof", None, "gives the type of a value"),
    ("_src.ad_util", "aval_zeros_likers", None, "makes zeros of a type"),
    ("_src.core", "aval_mapping_handlers", None, "takes an axis from a type, or adds one"),
    ("_src.core", "aval_method", None, "is a method of a type that its tracers have"),
    ("_src.core", "aval_property", None, "is a property of a type that its tracers have"),
    ("_src.core", "pytype_aval_mappings", None, "gives the type of a value, by its class"),
    ("_src.core", "shard_aval_handlers", None, "makes the type inside of a shard_map"),
    ("_src.core", "unshard_aval_handlers", None, "makes the type outside of a shard_map"),
    (
        "_src.dtypes",
        "register_canonicalize_value_handler",
        None,
        "takes arguments of a class as they are",
    ),
    ("_src.interpreters.pxla", "shard_arg_handlers", None, "hands arguments of a class to a program"),
    ("_src.numpy.array_methods", "_array_methods", None, "has the methods of arrays"),
    ("_src.numpy.array_methods", "_array_operators", None, "has the operators of arrays"),
    ("_src.numpy.array_methods", "_array_properties", None, "has the properties of arrays"),
    ("_src.state.types", "AbstractRef", None, "is the type of an array reference"),
    ("_src.custom_derivatives", "SymbolicZero", None, "is a zero tangent in a custom rule"),
    ("_src.debugging", "debug_callback_p", None, "is the primitive of debug.callback"),
    ("_src.dtypes", "extended", None, "is the kind of dtypes with rules of their own"),
    ("_src.dtypes", "float0", None, "is the dtype of tangents of whole numbers"),
    ("_src.dtypes", "issubdtype", None, "sorts dtypes"),
    ("_src.effects", "Effect", None, "is what the effect of sites derives from"),
    ("_src.effects", "control_flow_allowed_effects", None, "is a list of effects that loops and branches take"),
    ("_src.effects", "custom_derivatives_allowed_effects", None, "is a list of effects that custom rules take"),
    ("_src.interpreters.batching", "AxisData", None, "describes a mapped axis"),
    ("_src.interpreters.batching", "BatchTrace", None, "is the trace of vmap"),
    ("_src.interpreters.batching", "BatchTracer", None, "is a value under vmap"),
    ("_src.interpreters.batching", "batch", None, "maps a function"),
    ("_src.interpreters.batching", "batch_jaxpr2", None, "maps a jaxpr, and says what is mapped of its outputs"),
    ("_src.interpreters.batching", "batch_jaxpr_axes", None, "maps a jaxpr over chosen axes"),
    ("_src.interpreters.partial_eval", "DynamicJaxprTrace", None, "is the trace that makes jaxprs"),
    ("_src.interpreters.partial_eval", "DynamicJaxprTracer", None, "is a value in it"),
    ("_src.interpreters.partial_eval", "JaxprTrace", None, "is the trace of reverse mode"),
    ("_src.interpreters.partial_eval", "custom_staging_rules", None, "has the rules for making equations"),
    ("_src.mesh", "thread_resources", None, "has the mesh of a `with` block"),
    ("_src.sharding_impls", "UNSPECIFIED", None, "is the sharding of jit's arguments without one"),
    ("_src.source_info_util", "_source_info_context", None, "has the scopes that are open, and sets them"),
    ("_src.source_info_util", "set_name_stack", None, "sets them"),
    ("_src.traceback_util", "register_exclusion", ("path",), "leaves frames out of tracebacks"),
    ("interpreters.ad", "Zero", None, "is a zero tangent, with its type"),
    ("interpreters.ad", "instantiate_zeros", None, "makes an array of it"),
    ("interpreters.ad", "primitive_jvps", None, "has the rules of differentiation"),
    ("interpreters.ad", "primitive_transposes", None, "has the rules of transposition"),
    ("interpreters.batching", "primitive_batchers", None, "has the other batching rules"),
    ("interpreters.mlir", "lower_fun", None, "makes a lowering rule of a function"),
    ("interpreters.mlir", "register_lowering", ("prim", "rule"), "sets the lowering rule of a primitive"),
]

# Used where JAX has them: names that some of the supported versions lack, with those that stand in for them.
IN_SOME_VERSIONS = {
    ("_src", "flattree"): ("_src.tree_util", "FlatTree"),
    ("_src.tree_util", "FlatTree"): ("_src", "flattree"),
    ("_src.core", "ClosedJaxpr"): ("_src.core", "Jaxpr"),
    ("_src.lax", "eval_jaxpr"): ("_src.core", "eval_jaxpr"),
}

PRIVATE = ("jax._src", "jax.interpreters", "jax.extend")


def is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # what it would be in is no module
        return False


def has(module: str, name: str) -> bool:
    whole = f"jax.{module}"
    return is_module(f"{whole}.{name}") or (is_module(whole) and hasattr(importlib.import_module(whole), name))


def private_names(file: Path) -> set[tuple[str, str]]:
    """The names of JAX's inside that a file uses: those it imports, and attributes of modules that it imports."""
    tree = ast.parse(file.read_text())
    modules, found = {}, set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        of_door = node.module.startswith("sonde._jax")  # which hands on three modules of `jax.interpreters`
        origin = "jax.interpreters" if of_door else node.module
        for each in node.names if origin.startswith(PRIVATE) else ():
            if is_module(f"{origin}.{each.name}"):
                modules[each.asname or each.name] = f"{origin}.{each.name}"
            elif not of_door:
                found.add((origin, each.name))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            of = ast.unparse(node.value).removeprefix("_jax.")
            if of in modules or (of in ("ad", "batching", "mlir") and ast.unparse(node.value).startswith("_jax.")):
                found.add((modules.get(of, f"jax.interpreters.{of}"), node.attr))
    return {(module.removeprefix("jax."), name) for module, name in found}


def test_every_private_name_that_sonde_uses_is_listed() -> None:
    used = {name for file in Path(sonde.__file__).parent.rglob("*.py") for name in private_names(file)}
    listed = {(module, name) for module, name, *_ in EXPECTED} | set(IN_SOME_VERSIONS)
    assert not used - listed, f"say in EXPECTED what is expected of {sorted(used - listed)}"
    assert not listed - used - set(IN_SOME_VERSIONS), "listed, but not used"


@pytest.mark.parametrize("name", IN_SOME_VERSIONS, ids=".".join)
def test_a_name_that_some_versions_lack_has_another_in_its_place(name: tuple[str, str]) -> None:
    assert has(*name) or has(*IN_SOME_VERSIONS[name]), f"both {name} and {IN_SOME_VERSIONS[name]} are gone"


@pytest.mark.parametrize(("module", "name", "arguments", "purpose"), EXPECTED, ids=lambda x: str(x)[:40])
def test_private_names(module: str, name: str, arguments: tuple[str, ...] | None, purpose: str) -> None:
    found: Any = getattr(importlib.import_module(f"jax.{module}"), name, None)
    assert found is not None, f"jax.{module}.{name} is gone, which {purpose}: see sonde/_jax"
    if arguments is not None:
        have = tuple(inspect.signature(found).parameters)[: len(arguments)]
        assert have == arguments, f"jax.{module}.{name}, which {purpose}, takes {have}, not {arguments}: see sonde/_jax"


def test_tables_that_rules_are_replaced_in_have_the_rules() -> None:
    from jax._src.interpreters import ad, batching, partial_eval

    from sonde import _jax

    assert _jax.scan_p in ad.primitive_linearizations
    assert _jax.scan_p in partial_eval.custom_partial_eval_rules
    assert _jax.while_p in partial_eval.custom_partial_eval_rules
    assert {_jax.scan_p, _jax.while_p} <= set(partial_eval.partial_eval_jaxpr_custom_rules)
    assert {_jax.cond_p, _jax.while_p} <= set(batching.fancy_primitive_batchers)


def test_importing_changes_nothing_in_jax() -> None:
    program = """
import jax
from jax._src import ad_checkpoint, effects, pjit
from jax._src.interpreters import ad, batching, partial_eval as pe

def state():
    tables = ad.primitive_linearizations, batching.fancy_primitive_batchers, pe.custom_partial_eval_rules
    tables = *tables, pe.partial_eval_jaxpr_custom_rules
    names = [(m, n) for m in (pe, pjit, ad_checkpoint) for n in vars(m) if callable(getattr(m, n))]
    return (
        {(m.__name__, n): getattr(m, n) for m, n in names},
        pe.JaxprTrace.__dict__.get("invalidate"),
        [{p: rule for p, rule in t.items() if not p.name.startswith("sonde")} for t in tables],
    )

before = state()
import sonde, sonde.nnx, sonde.linen
assert state() == before, "importing Sonde has changed JAX"
sonde.capture(lambda x: sonde.sow(x, "x"))(1.0)
assert state() != before, "nothing was changed by a capture: this test looks in the wrong places"
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
