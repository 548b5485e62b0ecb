"""Activation patching over 12 layers and 64 positions: one compiled call against a Python loop of jitted calls.

The loop is the good one: one jitted function per layer, compiled before the clock starts, with the position as an
argument, and one wait at the end. Both do the same arithmetic. What the sweep saves is 768 calls and an idle machine,
which is nearly everything on a GPU and nothing on two busy CPU cores: the bound is for a GPU, elsewhere the figure is
shown and not judged.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

import sonde
from measure import Row, interleaved, main
from sonde.tools import patch_sweep
from transformer import Size, make, model

LAYERS, POSITIONS = 12, 64


def measure() -> list[Row]:
    rows = []
    bound = 1 / 5 if jax.default_backend() == "gpu" else None
    for width in (16, 64):
        size = Size(blocks=LAYERS, width=width, heads=2, batch=1, length=POSITIONS)
        params, clean = make(size)
        corrupt = jax.random.normal(jax.random.key(1), clean.shape)
        forward = model(size.heads)
        paths = [f"blocks/{i}/out" for i in range(LAYERS)]

        def f(x, params=params, forward=forward):
            return forward(params, x)

        def metric(y):
            return y[0, -1].sum()

        def patched(path, f=f):
            def run(x, value, position):
                return metric(sonde.edit(f, {path: lambda v: v.at[:, position].set(value[:, position])})(x))

            return jax.jit(run)

        _, records = sonde.capture(jax.jit(f), *paths)(clean)
        runs = [(patched(path), records[path].value) for path in paths]
        positions = [jnp.int32(p) for p in range(POSITIONS)]

        def loop(runs=runs, corrupt=corrupt, positions=positions):
            return [run(corrupt, value, p) for run, value in runs for p in positions]

        def sweep(f=f, clean=clean, corrupt=corrupt, paths=paths):
            return list(patch_sweep(f, clean, corrupt, paths, metric).scores.values())

        assert jnp.allclose(jnp.concatenate(sweep()), jnp.stack(loop()), rtol=1e-3, atol=1e-4)
        times = interleaved({"loop": loop, "sweep": sweep}, seconds=8, min_rounds=3)
        rows.append(times.row("sweep", f"patching 12 x 64, width {width}: sweep against a loop", bound))
    return rows


if __name__ == "__main__":
    main(measure)
