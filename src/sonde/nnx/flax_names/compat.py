"""Functions of `sonde.nnx` with `graph=True` and `graph_updates=True` set, whatever the current mode is.

For code that needs shared references and changes of structure in a process that runs with `nnx.set_graph_mode(False)`:
`nnx.compat.jit(f)`.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

_NAMES = """
    backup_keys cached_partial checkify clone cond custom_vjp eval_shape flatten fori_loop fork_rngs get_abstract_model
    grad graphdef iter_children iter_graph iter_modules jit jvp pmap recursive_map remat reseed scan shard_map split
    split_rngs state switch value_and_grad view view_info vjp vmap while_loop
"""
__all__ = _NAMES.split()  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Callable[..., Any]:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    function = getattr(importlib.import_module("sonde.nnx"), name)
    accepted = inspect.signature(function).parameters
    return functools.partial(function, **{option: True for option in ("graph", "graph_updates") if option in accepted})


def __dir__() -> list[str]:
    return list(__all__)
