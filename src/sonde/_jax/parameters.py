"""The parameters of `jit` and `scan`, which differ between versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax

from sonde._jax.imported import UNSPECIFIED, Jaxpr, PjitFunction, flattree

__all__ = ["QUICK_COMPILATION", "jit_is_plain", "jit_options", "jit_params", "scan_params", "scan_sizes"]

QUICK_COMPILATION: Mapping[str, bool | int] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    # Halves the time to compile. Later versions of XLA have no such option.
    **({"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ < (0, 11) else {}),
}
"""Compiler options for programs that run a few times only."""


def jit_params(params: dict[str, Any], jaxpr: Jaxpr, *, n_in: int, n_out: int) -> dict[str, Any]:
    """Parameters of a jit with `n_in` more inputs in front and `n_out` more outputs at the end."""
    return {
        **params,
        "jaxpr": jaxpr,
        "in_shardings": (*[UNSPECIFIED] * n_in, *params["in_shardings"]),
        "out_shardings": (*params["out_shardings"], *[UNSPECIFIED] * n_out),
        "in_layouts": (*[None] * n_in, *params["in_layouts"]),
        "out_layouts": (*params["out_layouts"], *[None] * n_out),
        "donated_invars": (*[False] * n_in, *params["donated_invars"]),
    }


def jit_is_plain(params: dict[str, Any]) -> bool:
    """Whether a jit only compiles: it has no shardings, layouts or donation."""
    return (
        _NO_SHARDING.issuperset((*params["in_shardings"], *params["out_shardings"]))
        and _NO_LAYOUT.issuperset((*params["in_layouts"], *params["out_layouts"]))
        and True not in params["donated_invars"]
        and not params.get("compiler_options_kvs")
    )


_NO_SHARDING, _NO_LAYOUT = frozenset({UNSPECIFIED}), frozenset({None})


def jit_options(fn: Any) -> tuple[Callable, dict[str, Any]] | None:
    """The function inside a jitted callable and the options to jit it again; None if that cannot be done faithfully."""
    if type(fn) is not PjitFunction:
        return None
    jitted: Any = fn
    info = jitted._jit_info
    shardings = (*info.in_shardings_leaves, *info.out_shardings_leaves)
    layouts = (*info.in_layouts_leaves, *info.out_layouts_leaves)
    if any(x is not UNSPECIFIED for x in shardings) or any(x is not None for x in layouts):
        return None
    if info.device or info.backend or getattr(info, "compiler_options_kvs", None):
        return None
    return jitted._fun, {
        "static_argnums": info.static_argnums or None,
        "static_argnames": info.static_argnames or None,
        "donate_argnums": info.donate_argnums or None,
        "donate_argnames": info.donate_argnames or None,
        "keep_unused": info.keep_unused,
        "inline": info.inline,
    }


def scan_params(params: dict[str, Any], jaxpr: Jaxpr, *, n_consts: int, n_xs: int, n_ys: int) -> dict[str, Any]:
    """Parameters of a scan with more constants in front, more scanned inputs and more stacked outputs at the end."""
    new_params = {**params, "jaxpr": jaxpr}
    if "num_consts" in params:
        new_params["num_consts"] += n_consts
        return new_params
    consts, carry, xs = params["ft_in"].unpack()
    carry_out, ys = params["ft_out"].unpack()
    if n_consts or n_xs:
        new_params["ft_in"] = flattree.pack((flattree.nones(len(consts) + n_consts), carry, (xs, flattree.nones(n_xs))))
    if n_ys:
        new_params["ft_out"] = flattree.pack((carry_out, (ys, flattree.nones(n_ys))))
    return new_params


def scan_sizes(params: dict[str, Any]) -> tuple[int, int]:
    """How many inputs of a scan are constants, and how many are carried."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)
