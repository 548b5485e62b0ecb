"""Functions of `sonde.nnx` with `graph=True` and `graph_updates=True` set, whatever the current mode is.

For code that needs shared references and changes of structure in a process that runs with `nnx.set_graph_mode(False)`:
`nnx.compat.jit(f)`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

_GRAPH = [
    "backup_keys",
    "clone",
    "flatten",
    "get_abstract_model",
    "graphdef",
    "iter_children",
    "iter_graph",
    "iter_modules",
    "recursive_map",
    "reseed",
    "split",
    "state",
    "view",
    "view_info",
]
_GRAPH_AND_UPDATES = [
    "cached_partial",
    "checkify",
    "cond",
    "custom_vjp",
    "eval_shape",
    "fori_loop",
    "fork_rngs",
    "grad",
    "jit",
    "jvp",
    "pmap",
    "remat",
    "scan",
    "shard_map",
    "split_rngs",
    "switch",
    "value_and_grad",
    "vjp",
    "vmap",
    "while_loop",
]

__all__ = sorted([*_GRAPH, *_GRAPH_AND_UPDATES])  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Callable[..., Any]:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    function = getattr(importlib.import_module("sonde.nnx"), name)
    if name in _GRAPH_AND_UPDATES:
        return functools.partial(function, graph=True, graph_updates=True)
    return functools.partial(function, graph=True)


def __dir__() -> list[str]:
    return list(__all__)
