"""What Sonde expects of JAX's inside, name by name: a new JAX fails here first, in words."""

import importlib
import inspect
import subprocess
import sys
from typing import Any

import pytest

# A dotted name below jax, the arguments that a function must take (None: any), and what it is needed for.
EXPECTED: list[tuple[str, str, tuple[str, ...] | None, str]] = [
    ("_src.config", "eager_constant_folding", None, "is on under `ensure_compile_time_eval`"),
    ("_src.core", "eval_jaxpr", ("jaxpr", "consts"), "runs a jaxpr under the current trace"),
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
    ("_src.interpreters.partial_eval", "convert_constvars_jaxpr", None, "makes inputs of constants"),
    ("_src.interpreters.ad", "primitive_linearizations", None, "has the rules of linearisation"),
    ("_src.interpreters.batching", "batch_jaxpr", ("closed_jaxpr", "axis_data", "in_batched"), "says what is mapped"),
    ("_src.interpreters.batching", "broadcast", ("x", "sz", "axis", "mesh_axis"), "repeats what is not mapped"),
    ("_src.interpreters.batching", "fancy_primitive_batchers", None, "has the batching rules that know the axis"),
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
    ("_src.source_info_util", "current_name_stack", (), "has the scopes that are open"),
    ("_src.util", "weakref_cache_key_types", None, "is the set of types that caches hold weakly"),
    ("_src.source_info_util", "extend_name_stack", ("name",), "opens a scope"),
]


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
