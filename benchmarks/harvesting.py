"""Storing activations while a model runs: throughput, memory, reading back, bytes on disk.

The model is a transformer of realistic width; four of its sites are stored as float16. The bare run is the same jitted
forward over the same batches, which returns its output. Memory is the peak of a separate process, minus that of the
bare run in another one.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

import sonde
from measure import Row, main
from sonde import store
from transformer import Size, make, model

SIZE = Size(blocks=4, width=768, heads=12, batch=8, length=128)
BATCHES = 12
SITES = tuple(f"blocks/{i}/out" for i in range(4))


def program(size: Size = SIZE):
    params, x = make(size)
    forward = model(size.heads)
    batches = [np.asarray(x) * (1 + i / 100) for i in range(BATCHES)]
    return jax.jit(lambda x: forward(params, x)), batches


def harvested(f, batches, folder, **options) -> float:
    start = time.perf_counter()
    store.harvest(f, batches, folder, *SITES, dtype="float16", progress=False, **options)
    return time.perf_counter() - start


def bare(f, batches) -> float:
    start = time.perf_counter()
    for batch in batches:
        out = f(batch)
    jax.block_until_ready(out)
    return time.perf_counter() - start


def throughput(folder: Path) -> list[Row]:
    """Best of several interleaved runs; each compiles, so compile time is measured separately and subtracted."""
    f, batches = program()
    bare(f, batches[:1])
    first = harvested(f, batches[:1], folder / "first")
    plain, stored = [], []
    for i in range(7):
        plain.append(bare(f, batches))
        stored.append(harvested(f, batches, folder / str(i)) - harvested(f, batches[:1], folder / f"one{i}"))
    ratio = min(stored) / (min(plain) * (BATCHES - 1) / BATCHES)
    control = min(plain[::2]) / min(plain[1::2])
    detail = f"{min(stored):.2f} s for {BATCHES - 1} batches; the first takes {first:.1f} s, and compiles"
    question = "harvest of 4 sites against the bare forward, time (0.95 of the throughput)"
    return [Row(question, ratio, 1 / 0.95, control=control, detail=detail)]


def disk(folder: Path) -> list[Row]:
    kept = store.open(folder / "0")
    raw = sum(array.nbytes for array in kept.arrays)
    found = sum(p.stat().st_size for p in (folder / "0").rglob("*") if p.is_file())
    return [Row("bytes on disk against the raw float16 arrays", found / raw, 1.02)]


def reading(folder: Path) -> list[Row]:
    """Reads what is not in the page cache, because stores are larger than memory."""
    rng = np.random.default_rng(0)
    scale = np.exp(rng.standard_normal(SIZE.width)).astype(np.float32)
    batches = [(rng.standard_normal((8192, SIZE.width)) * scale).astype(np.float16) for _ in range(16)]
    store.harvest(lambda x: sonde.sow(x, "h"), batches, folder / "rows", progress=False)
    np.concatenate(batches).tofile(folder / "memmap")
    rows, size = sum(map(len, batches)), 1024
    del batches

    def sequential():
        kept = store.open(folder / "rows")["h"]
        for start in range(0, rows, size):
            kept[start : start + size]

    def shuffled():
        for _ in store.open(folder / "rows").batches(size, shuffle=True, window=rows // 3):
            pass

    def by_hand():
        file = np.memmap(folder / "memmap", np.float16, "r", shape=(rows, SIZE.width))
        order = np.random.default_rng(0).permutation(rows)
        for start in range(0, rows, size):
            file[order[start : start + size]]

    times: dict[Any, list[float]] = {f: [] for f in (sequential, shuffled, by_hand)}
    files = [p for p in folder.rglob("*") if p.is_file()]
    for _ in range(20):
        for f, seen in times.items():
            for file in files:
                forget(file)
            start = time.perf_counter()
            f()
            seen.append(time.perf_counter() - start)
    best = {f.__name__: min(seen) for f, seen in times.items()}
    detail = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in best.items())
    return [
        Row("shuffled reading against sequential, time", best["shuffled"] / best["sequential"], 2.0, detail=detail),
        Row("shuffled reading against a memmap by hand, time", best["shuffled"] / best["by_hand"], 1.0),
    ]


def cached(folder: Path, width: int, rows: int) -> list[Row]:
    """Minibatches from files in the system's cache, in processor time: other programs do not change it much."""
    rng = np.random.default_rng(0)
    batches = [rng.standard_normal((8192, width)).astype(np.float16) for _ in range(rows >> 13)]
    store.harvest(lambda x: sonde.sow(x, "h"), batches, folder / f"{width}", progress=False)
    np.concatenate(batches).tofile(folder / f"memmap{width}")
    file = np.memmap(folder / f"memmap{width}", np.float16, "r", shape=(rows, width))
    drawn = {
        verify: store.open(folder / f"{width}", verify=verify).batches(
            1024, shuffle=True, epochs=None, window=rows // 3
        )
        for verify in (True, False)
    }
    order = rng.permutation(rows).reshape(-1, 1024)
    uses: dict[str, Any] = {
        "verified": lambda i: next(drawn[True]),
        "unverified": lambda i: next(drawn[False]),
        "memmap": lambda i: file[order[i]],
    }
    times: dict[str, list[float]] = {name: [] for name in uses}
    for _ in range(9):
        for name, use in uses.items():
            start = time.process_time()
            for i in range(len(order)):
                use(i)
            times[name].append(time.process_time() - start)
    best = {name: min(seen[1:]) for name, seen in times.items()}
    detail = ", ".join(f"{name} {seconds / rows * 1e6:.3f} µs a row" for name, seconds in best.items())
    what = f"cached rows of {2 * width} bytes, processor time"
    return [
        Row(f"{what}: minibatches against a memmap", best["verified"] / best["memmap"], 1.0, detail=detail),
        Row(f"{what}: verified against not", best["verified"] / best["unverified"], 1.05),
    ]


def forget(file: Path) -> None:
    """Drops a file from the page cache, so that reading it means reading the disk."""
    descriptor = os.open(file, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def peak(what: str) -> float:
    """The peak memory of a process that runs something, in bytes."""
    done = subprocess.run([sys.executable, __file__, what], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def memory() -> list[Row]:
    bound = 256 << 20
    more = peak("harvest") - peak("bare")
    return [Row("peak memory beyond the bare run, of the bound that was set (256 MiB)", more / bound, 1.0)]


def measure() -> list[Row]:
    """All parts, or the one that the command line names: `throughput`, `reading`, `cached` or `memory`."""
    parts = {
        "throughput": lambda: [*throughput(folder), *disk(folder)],
        "reading": lambda: reading(folder),
        "cached": lambda: [*cached(folder, 64, 1 << 18), *cached(folder, 768, 1 << 16)],
        "memory": memory,
    }
    chosen = [name for name in parts if name in sys.argv] or list(parts)
    folder = Path(tempfile.mkdtemp())
    try:
        return [row for name in chosen for row in parts[name]()]
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    if sys.argv[1:] in (["harvest"], ["bare"]):
        f, batches = program()
        if sys.argv[1] == "harvest":
            folder = tempfile.mkdtemp()
            harvested(f, batches, folder, memory=256 << 20)
            shutil.rmtree(folder)
        else:
            bare(f, batches)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    else:
        main(measure)
