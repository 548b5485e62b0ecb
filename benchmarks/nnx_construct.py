"""Building layers: the time that 300 `Linear` layers take, against Flax's."""

from __future__ import annotations

from typing import Any

from flax import nnx as flax_nnx
from measure import Row, interleaved, main
from sonde import nnx

LAYERS = 300


def build(where: Any) -> None:
    rngs = where.Rngs(0)
    for _ in range(LAYERS):
        where.Linear(8, 8, rngs=rngs)


def measure() -> list[Row]:
    times = interleaved({"flax": lambda: build(flax_nnx), "sonde": lambda: build(nnx)}, seconds=4, min_rounds=5)
    return [times.row("sonde", f"building {LAYERS} Linear layers: against Flax", 0.25)]


if __name__ == "__main__":
    main(measure)
