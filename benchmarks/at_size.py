"""The tools on a language model of 30 layers, with the layers as a list and as one scan.

Users wait for the first answer, so these rows are mostly first calls, compilation included, with JAX's caches cleared
before each. A compile time is the time of a first call minus that of a second one.

The model has the size of SmolLM2; on a CPU, except for the sweep, a third of its width, so that the table takes only
minutes. `ROWS="examined monitored"` in the environment measures only these rows.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from measure import Row, interleaved, main, table
from sonde import models, nnx
from sonde.report import examine
from sonde.tools import monitor, patch_sweep, summarize
from transformer import Size, loss_of, make, model, unmarked

LAYERS, POSITIONS, SITES = 30, 14, 270
ON_GPU = jax.default_backend() == "gpu"
RUNS = LAYERS * POSITIONS // (1 if ON_GPU else 10)  # forwards that are timed; a tenth of them on a CPU
SWEPT, COMPILED, EXAMINED, MONITORED = (0.1 if ON_GPU else 1.0), 1.5, 2.0, 1.1
STATISTICS = ["mean", "std", "norm", "grad_norm", "nonfinite"]
# Nine sites of every layer.
PATTERNS = [f"blocks/*/{name}" for name in ("in", "norm1", "norm2", "attn/q", "attn/k", "attn/v", "attn/weights")]
PATTERNS += ["blocks/*/attn/out", "blocks/*/out"]


def config(full: bool = ON_GPU) -> dict[str, Any]:
    width, hidden, vocabulary = (576, 1536, 49152) if full else (192, 512, 4096)
    return {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": LAYERS,
        "hidden_size": width,
        "num_attention_heads": 9 if full else 3,
        "num_key_value_heads": 3,
        "intermediate_size": hidden,
        "vocab_size": vocabulary,
        "max_position_embeddings": 8192,
    }


def measure() -> list[Row]:
    rows = []
    asked = os.environ.get("ROWS", "swept summarized examined monitored").split()  # some rows only
    for layers in ("scan", "list"):
        for rows_of in (swept, summarized, examined):
            if rows_of.__name__ in asked:
                found = rows_of(layers, models.from_config(config(ON_GPU or rows_of is swept), layers=layers))
                rows += found
                print("\n".join(table(found).splitlines()[2:]), file=sys.stderr, flush=True)
    return [*rows, *(monitored() if "monitored" in asked else [])]


def swept(layers: str, made: Any) -> list[Row]:
    """A sweep over the residual stream, 30 by 14, against 420 forwards.

    On a CPU the bound is on the first answer, against forwards that were compiled before. On a GPU those take half a
    second, less than any program takes to compile, so the bound is on the second answer.
    """
    clean, corrupt = (jax.random.randint(jax.random.key(i), (1, POSITIONS), 0, 4096) for i in range(2))
    graph, state = nnx.split(made)

    def f(state: Any, tokens: jax.Array) -> Any:
        return nnx.merge(graph, state)(tokens)

    def metric(logits: jax.Array) -> jax.Array:
        return logits[0, -1, 0] - logits[0, -1, 1]

    def sweep() -> Any:
        return patch_sweep(f, "blocks/*/out", metric=metric)((state, clean), (state, corrupt))

    def bare() -> Callable[[], Any]:
        forward = jax.jit(lambda state, tokens: metric(f(state, tokens)))

        def all_of_them() -> Any:
            return [forward(state, corrupt) for _ in range(RUNS)]

        return all_of_them

    forwards = bare()
    jax.block_until_ready(forwards())
    first = _seconds(sweep)
    more = LAYERS * POSITIONS / RUNS
    best = min(_seconds(forwards) for _ in range(2)) * more
    with_compiling = _first(bare)
    with_compiling += best * (1 - 1 / more)
    warm = min(_seconds(sweep) for _ in range(2))
    what, n = f"patch_sweep 30 x 14, layers in a {layers}", LAYERS * POSITIONS
    return [
        _row(f"{what}: first answer against {n} compiled forwards", None if ON_GPU else SWEPT, first, best),
        _row(f"{what}: first answer against first {n} forwards", None, first, with_compiling),
        _row(f"{what}: second answer against {n} compiled forwards", SWEPT, warm, best),
    ]


def summarized(layers: str, made: Any) -> list[Row]:
    """The compile time of statistics of 270 sites."""
    tokens = jax.random.randint(jax.random.key(0), (1, POSITIONS), 0, 4096)
    graph, state = nnx.split(made)

    def bare() -> Callable[[], Any]:
        forward = jax.jit(lambda state, tokens: nnx.merge(graph, state)(tokens))
        return lambda: forward(state, tokens)

    def looked_at() -> Callable[[], Any]:
        look = summarize(jax.jit(lambda state, tokens: nnx.merge(graph, state)(tokens)), *PATTERNS)
        return lambda: look(state, tokens)

    assert len(looked_at()()) == SITES
    times = {name: [_compiling(make) for make in (bare, looked_at)] for name in "ab"}
    mine, base = (min(t[i] for t in times.values()) for i in (1, 0))
    return [_row(f"statistics of {SITES} sites, layers in a {layers}: compile time", COMPILED, mine, base)]


def examined(layers: str, made: Any) -> list[Row]:
    """The first page of a training step with gradients."""
    tokens = jax.random.randint(jax.random.key(0), (2, 4 * POSITIONS), 0, 4096)
    graph, state = nnx.split(made)

    def train_step(state: Any, tokens: jax.Array) -> Any:
        def loss(state: Any) -> jax.Array:
            logits = jax.nn.log_softmax(nnx.merge(graph, state)(tokens[:, :-1]))
            return -jnp.take_along_axis(logits, tokens[:, 1:, None], -1).mean()

        value, grads = jax.value_and_grad(loss)(state)
        return jax.tree.map(lambda p, g: p - 1e-3 * g, state, grads), value

    def bare() -> Callable[[], Any]:
        step = jax.jit(lambda state, tokens: train_step(state, tokens))
        return lambda: step(state, tokens)

    def looked_at() -> Callable[[], Any]:
        look = examine(jax.jit(lambda state, tokens: train_step(state, tokens)), grads=True)
        return lambda: look(state, tokens).write(Path(folder) / "page.html")

    with tempfile.TemporaryDirectory() as folder:
        mine, base = (min(_first(make) for _ in range(2)) for make in (looked_at, bare))
    return [_row(f"examine of a training step with gradients, layers in a {layers}: first page", EXAMINED, mine, base)]


def monitored() -> list[Row]:
    """Ten small steps, of which one is monitored."""
    size = Size(blocks=4, width=64, batch=4, length=64)
    params, x = make(size)
    loss = loss_of(model(size.heads))

    def train_step(params: Any, x: Any, *marks: Any) -> Any:
        value, grads = jax.value_and_grad(lambda p: loss(p, x, *marks))(params)
        return jax.tree.map(lambda p, g: p - 1e-6 * g, params, grads), value

    bare = jax.jit(lambda params, x: train_step(params, x, unmarked))
    watched = monitor(jax.jit(train_step), {"**": STATISTICS}, every=10)

    def ten(step: Any) -> Any:
        now, value = params, None
        for _ in range(10):
            now, value = step(now, x)
        return now, value

    times = interleaved({"bare": lambda: ten(bare), "monitored": lambda: ten(watched)}, seconds=8)
    each = times.best["bare"] / 10
    return [times.row("monitored", f"monitor, every=10, steps of {each * 1e3:.2g} ms", MONITORED, beyond_spread=True)]


def _row(question: str, bound: float | None, mine: float, base: float) -> Row:
    return Row(question, mine / base, bound, detail=f"{mine:.3g} s against {base:.3g} s")


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(jax.tree.leaves(_arrays(call())))
    return time.perf_counter() - start


def _arrays(result: Any) -> Any:
    return dict(result.scores) if hasattr(result, "scores") else jax.tree.leaves(result)


def _first(make: Callable[[], Callable[[], Any]]) -> float:
    jax.clear_caches()
    gc.collect()
    return _seconds(make())


def _compiling(make: Callable[[], Callable[[], Any]]) -> float:
    jax.clear_caches()
    gc.collect()
    call = make()
    return _seconds(call) - min(_seconds(call) for _ in range(3))


if __name__ == "__main__":
    main(measure)
