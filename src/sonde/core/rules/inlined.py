"""Primitives that do nothing but run the jaxpr inside them: it is run instead of them.

A function with its own rule for `vmap` is run like this only where nothing around can map it: its rule says nothing
about the values inside, so under a transform it is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sonde import _jax
from sonde.core.trace import RULES, SiteTrace, check_may_miss_all


def inlined_rule(trace: SiteTrace, args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """A jaxpr that is evaluated as it stands."""
    (jaxpr,) = _jax.sub_jaxprs(params)
    with _jax.set_current_trace(trace):
        return _jax.eval_jaxpr(jaxpr, *args)


def custom_vmap_rule(trace: SiteTrace, args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """A call of a `jax.custom_batching.custom_vmap` function."""
    if trace.parent is _jax.eval_trace:
        return inlined_rule(trace, args, params)
    check_may_miss_all(_jax.custom_vmap_p, params)
    return _jax.custom_vmap_p.bind(*args, **params)


RULES[_jax.custom_vmap_p] = custom_vmap_rule
for _primitive in _jax.inlined_primitives():
    RULES[_primitive] = inlined_rule
