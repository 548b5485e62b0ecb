"""Runs the benchmarks and prints a table for each part of the library. The exit status tells whether all bounds hold.

Without arguments all of them run, which takes some minutes; otherwise those named, as in
`python benchmarks/run.py eager tracing`, or whole parts, as in `python benchmarks/run.py tools`. Each runs in a process
of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from measure import Row, table

HERE = Path(__file__).parent
PARTS = {
    "engine": (
        "compiled",
        "calling",
        "editing",
        "growing",
        "eager",
        "tracing",
        "gradients",
        "importing",
        "gpu_transformer",
    ),
    "nnx": ("nnx_dispatch", "nnx_construct", "nnx_tracing", "nnx_peers"),
    "tools": ("patching", "monitoring", "running", "explaining", "at_size"),
    "inside": ("inside",),
    "models": ("models",),
    "viewer": ("viewing",),
    "store": ("harvesting", "probing"),
}


def rows_of(name: str) -> list[Row]:
    done = subprocess.run([sys.executable, HERE / f"{name}.py", "--json"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"benchmark {name} failed:\n{done.stderr}")
    return [Row(**row) for row in json.loads(done.stdout.splitlines()[-1])]


def chosen(asked: list[str]) -> dict[str, list[str]]:
    """The benchmarks to run, by part."""
    known = {name for names in PARTS.values() for name in names}
    unknown = [name for name in asked if name not in known and name not in PARTS]
    if unknown:
        there = "; ".join(f"{part}: {', '.join(names)}" for part, names in PARTS.items())
        sys.exit(f"no such benchmark: {', '.join(unknown)}; there are, by part, {there}")
    found = {
        part: [name for name in names if not asked or part in asked or name in asked] for part, names in PARTS.items()
    }
    return {part: names for part, names in found.items() if names}


def main(asked: list[str]) -> int:
    missed = 0
    for part, names in chosen(asked).items():
        rows: list[Row] = []
        for name in names:
            start = time.perf_counter()
            rows += rows_of(name)
            print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
        print(f"\n{part}\n{table(rows)}", flush=True)
        missed += sum(row.verdict == "MISSED" for row in rows)
    print(f"\n{missed} bounds missed" if missed else "\nall bounds hold")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
