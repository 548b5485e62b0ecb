"""JAX's own classes, primitives and functions that Sonde uses as they are.

`tests/test_private_jax.py` lists the private ones with what is expected of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import numpy as np
from jax._src import core as _core
from jax._src import custom_derivatives as _custom_derivatives
from jax._src import custom_partitioning as _custom_partitioning
from jax._src import dtypes as _dtypes
from jax._src import effects as _effects
from jax._src.ad_checkpoint import remat_p
from jax._src.custom_batching import custom_vmap_p
from jax._src.interpreters import batching as _batching
from jax._src.lax import lax as _lax
from jax._src.lax.control_flow.conditionals import cond_p
from jax._src.lax.control_flow.loops import scan_p, while_p
from jax._src.pjit import jit_p
from jax._src.shard_map import shard_map_p
from jax._src.sharding_impls import UNSPECIFIED
from jax.interpreters import ad, batching, mlir

try:  # operations that carry their own rules: what `jax.checkpoint` is with `jax_remat3`
    from jax._src.ad_checkpoint import RematTraced as _RematTraced  # pyright: ignore[reportAttributeAccessIssue]
    from jax._src.hijax import call_hi_primitive_p as _call_hi_primitive_p  # pyright: ignore
    from jax._src.interpreters import remat as _remat  # pyright: ignore[reportAttributeAccessIssue]
except ImportError:
    _RematTraced = _call_hi_primitive_p = _remat = None
try:  # what calls are with `jax_custom_jvp3`, `jax_custom_vjp3` and `jax_scan3`
    from jax._src import hijax as _hijax
    from jax._src.hijax import CustomVJPTraced as _CustomVJPTraced  # pyright: ignore[reportAttributeAccessIssue]
    from jax._src.lax.control_flow.loops import Scan3 as _Scan3  # pyright: ignore[reportAttributeAccessIssue]
except ImportError:
    _hijax = _CustomVJPTraced = _Scan3 = None

try:  # 0.11 and later: what `scan` and `shard_map` describe their values with
    from jax._src import flattree as _flattree  # pyright: ignore[reportAttributeAccessIssue]
except ImportError:
    _flattree = None

__all__ = [
    "UNSPECIFIED",
    "AnyArray",
    "AxisData",
    "CustomJVPTraced",
    "CustomVJPTraced",
    "Dims",
    "Effect",
    "Equation",
    "ExtendedDType",
    "Jaxpr",
    "Literal",
    "PjitFunction",
    "Primitive",
    "RematTraced",
    "Scan3",
    "SymbolicZero",
    "Trace",
    "Tracer",
    "Var",
    "ad",
    "batching",
    "call_hi_primitive_p",
    "cond_p",
    "custom_vmap_p",
    "eval_trace",
    "inlined_primitives",
    "jit_p",
    "mlir",
    "no_effects",
    "remat_p",
    "scan_p",
    "set_current_trace",
    "shard_map_p",
    "typeof",
    "while_p",
]

# What signatures call a jaxpr, open or closed: `open_jaxpr` and `close_jaxpr` make it one of them. Later versions than
# 0.10 have one class for both.
if TYPE_CHECKING:
    Jaxpr: TypeAlias = _core.Jaxpr | _core.ClosedJaxpr
else:
    Jaxpr = _core.Jaxpr
Equation = _core.JaxprEqn
AxisData = _batching.AxisData
AnyArray: TypeAlias = jax.Array | np.ndarray  # a tracer is a `jax.Array` too
Dims: TypeAlias = Sequence[int | None]  # for each operand, where the mapped axis is; None: it has none

# Not from jax.extend.core, which has them too: importing it loads Pallas, 20 ms that most programs never need.
Literal = _core.Literal
Primitive = _core.Primitive
Var = _core.Var
Trace = _core.Trace
Tracer = _core.Tracer
Effect = _effects.Effect
ExtendedDType = _dtypes.ExtendedDType
SymbolicZero = _custom_derivatives.SymbolicZero
eval_trace = _core.eval_trace
no_effects = _core.no_effects
set_current_trace = _core.set_current_trace
typeof = _core.typeof
flattree: Any = _flattree
RematTraced: Any = _RematTraced  # `jax.checkpoint` with `jax_remat3`; None in versions without it
CustomJVPTraced: Any = getattr(_hijax, "CustomJVPTraced", None)  # 0.11 and later
CustomVJPTraced: Any = _CustomVJPTraced
Scan3: Any = _Scan3
hijax: Any = _hijax
call_hi_primitive_p: Any = _call_hi_primitive_p
remat_rules: dict[Any, Any] = {} if _remat is None else _remat.rules
# Whether `jax.checkpoint` with `jax_remat3` says which arguments get optimization barriers: from 0.11 on.
remat_has_barriers = _RematTraced is not None and "prevent_cse" in inspect.signature(_RematTraced.__init__).parameters
# Whether its rules return what is saved as a list of its own: from 0.12 on.
remat_saves = jax.__version_info__ >= (0, 12)
PjitFunction = type(jax.jit(lambda: None))


def inlined_primitives() -> set[Primitive]:
    """Primitives that compute what the one jaxpr in their parameters does; the others say how, or what to call it."""
    from jax._src.lax import eval_jaxpr  # a function in some versions, a module in others

    candidates = (
        getattr(eval_jaxpr, "eval_jaxpr_p", None),
        getattr(_core, "eval_jaxpr_p", None),
        getattr(_lax, "composite_p", None),
        getattr(_custom_derivatives, "remat_opt_p", None),  # a `custom_vjp` with `optimize_remat`, being differentiated
        getattr(_custom_partitioning, "custom_partitioning_p", None),
    )
    return {primitive for primitive in candidates if primitive is not None}
