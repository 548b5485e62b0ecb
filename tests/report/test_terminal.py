"""The table of a report in a terminal, at the size of real models."""

from __future__ import annotations

import io
from typing import Any

import jax.numpy as jnp
from rich.console import Console

from sonde import sow
from sonde.report import examine


def deep(x: Any) -> Any:
    for i in range(30):
        for name in ("attention/weights/of/a/long/name", "mlp", "out"):
            x = sow(x * 1.01, f"blocks/{i}/{name}")
    return sow(x, "logits")


def test_layers_are_folded_and_names_are_whole() -> None:
    shown = io.StringIO()
    report = examine(deep)(jnp.ones((2, 3)))
    Console(width=100, file=shown).print(report)
    lines = [line.rstrip() for line in shown.getvalue().splitlines()]
    table = [line for line in lines if line.startswith(("blocks/", "logits"))]
    names = [line.split()[0] for line in table]
    assert names == [
        "blocks/{0..29}/attention/weights/of/a/long/name",
        "blocks/{0..29}/mlp",
        "blocks/{0..29}/out",
        "logits",
    ]
    assert "1.01 to 2.4 " in lines[lines.index(table[0]) + 1] and "..." not in shown.getvalue().replace("{0..29}", "")
