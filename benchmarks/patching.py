"""Activation patching over 12 layers and 64 positions: one compiled call against a Python loop of jitted calls.

The loop is written well: one jitted function per layer, compiled before the clock starts, with the position as an
argument, and one wait at the end. A single function with the layer as another argument is slower; that is shown too.

The sweep saves half the arithmetic (what comes before a site is computed once for all positions) and the cost of 768
calls. Small calls leave a GPU idle, so there this is nearly everything, and the bound is a fifth. They keep a CPU busy:
there at most half of the arithmetic can be saved, and the bound is that the sweep is never slower. If the layers are
one scan, nothing comes before it, and only the calls are saved.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

import sonde
from measure import Row, interleaved, main
from sonde.tools import patch_sweep
from transformer import Size, make, model, stacked

LAYERS, POSITIONS = 12, 64


def measure() -> list[Row]:
    bound = 1 / 5 if jax.default_backend() == "gpu" else 1.0
    return [
        *rows(width=16, heads=2, bound=bound),
        *rows(width=64, heads=4, bound=bound, show_short=True),
        *rows(width=64, heads=4, bound=bound if bound < 1 else 1.1, scan=True),
    ]


def rows(*, width: int, heads: int, bound: float, scan: bool = False, show_short: bool = False) -> list[Row]:
    size = Size(blocks=LAYERS, width=width, heads=heads, batch=1, length=POSITIONS)
    params, clean = make(size)
    params = stacked(params) if scan else params
    corrupt = jax.random.normal(jax.random.key(1), clean.shape)
    forward = model(heads, scan=scan)
    paths = ["blocks/out"] if scan else [f"blocks/{i}/out" for i in range(LAYERS)]

    def f(x):
        return forward(params, x)

    def metric(y):
        return y[0, -1].sum()

    def put(value, position):
        return lambda v: v.at[:, position].set(value[:, position])

    def at_layer(layer):
        if scan:
            return jax.jit(
                lambda x, value, position: metric(
                    sonde.edit(f, {paths[0]: sonde.Edit(put(value, position), iterations=layer)})(x)
                )
            )
        return jax.jit(lambda x, value, position: metric(sonde.edit(f, {paths[layer]: put(value, position)})(x)))

    @jax.jit
    def anywhere(x, values, layer, position):
        edits = {
            path: lambda v, i=i: jnp.where(layer == i, put(values[i], position)(v), v) for i, path in enumerate(paths)
        }
        return metric(sonde.edit(f, edits)(x))

    _, records = sonde.capture(jax.jit(f), *paths)(clean)
    values = records[paths[0]].value if scan else jnp.stack([records[path].value for path in paths])
    runs = [(at_layer(i), values[i]) for i in range(LAYERS)]
    numbers = [jnp.int32(i) for i in range(POSITIONS)]

    def loop():
        return [run(corrupt, value, p) for run, value in runs for p in numbers]

    def short_loop():
        return [anywhere(corrupt, values, i, p) for i in numbers[:LAYERS] for p in numbers]

    def sweep():
        return list(patch_sweep(f, *paths, metric=metric)(clean, corrupt).scores.values())

    contenders = {"loop": loop, "sweep": sweep} | ({"short loop": short_loop} if show_short else {})
    found = [jnp.concatenate([jnp.ravel(x) for x in run()]) for run in contenders.values()]
    assert all(jnp.allclose(found[0], other, rtol=1e-3, atol=1e-4) for other in found[1:])
    times = interleaved(contenders, seconds=8, min_rounds=5)
    what = f"patching 12 x 64, width {width}{', layers in a scan' if scan else ''}"
    shown = [times.row("sweep", f"{what}: sweep against a loop of calls", bound)]
    if show_short:
        shown.append(times.row("short loop", f"{what}: a loop with one function for all layers", None))
    return shown


if __name__ == "__main__":
    main(measure)
