"""Primitives that do nothing but run the jaxpr inside them: it is run instead of them.

So are those whose other parameters only say how to compute it, such as those of `custom_partitioning`, or name it for
the compiler, as those of `lax.composite` do.

A function with its own rule for `vmap` is run like this only where nothing around can map it. Elsewhere it is called
with one more output for each value: its rule says nothing about these, so mapping it is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sonde import _jax
from sonde.core.interpret.rewrite import rewrite
from sonde.core.interpret.trace import RULES, SiteTrace, cannot_capture, site_not_to_miss


def inlined_rule(trace: SiteTrace, args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """A jaxpr that is evaluated as it stands."""
    (jaxpr,) = _jax.sub_jaxprs(params)
    with _jax.set_current_trace(trace):
        return _jax.eval_jaxpr(jaxpr, *args)


def custom_vmap_rule(trace: SiteTrace, args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """A call of a `jax.custom_batching.custom_vmap` function."""
    if trace.parent is _jax.eval_trace:
        return inlined_rule(trace, args, params)
    site = site_not_to_miss(params)
    if site is None:
        return _jax.custom_vmap_p.bind(*args, **params)
    rewritten = rewrite(params["call"], trace.handler)
    error = cannot_capture(site, _jax.custom_vmap_p, params, "is mapped around the capture by a rule of its own")

    def mapped(*_: Any) -> Any:
        raise error

    return rewritten.call(
        trace.handler, args, lambda inputs: _jax.bind_custom_vmap(inputs, params, rewritten.jaxpr, mapped)
    )


RULES[_jax.custom_vmap_p] = custom_vmap_rule
for _primitive in _jax.inlined_primitives():
    RULES[_primitive] = inlined_rule
