"""What the tables of models have in common (`nnx.tabulate`, `linen.tabulate`): how they look, and what a call costs."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import jax


def new_table(model: Any, options: Mapping[str, Any]) -> Any:
    """An empty rich table with the name of a model's class; `options` are for `rich.table.Table`."""
    from rich.table import Table

    look = {"show_header": True, "show_lines": True, "show_footer": True, "title": f"{type(model).__name__} Summary"}
    return Table(**{**look, **options})


def printed(table: Any, options: Mapping[str, Any]) -> str:
    """A rich table as text; `options` are for `rich.console.Console`."""
    from rich.console import Console

    buffer = io.StringIO()
    Console(**{"force_terminal": True, **options, "file": buffer}).print(table)
    return buffer.getvalue()


def estimated_flops(f: Callable[..., Any], *args: Any) -> int:
    """XLA's estimate of the operations of a call with these arrays or shapes; 0 if it has none.

    Example:
        >>> import jax.numpy as jnp
        >>> estimated_flops(lambda x: x + x, jnp.ones(3))
        3
    """
    cost = jax.jit(f).lower(*args).cost_analysis()
    cost = cost[0] if isinstance(cost, (list, tuple)) else cost
    return int((cost or {}).get("flops", 0))
