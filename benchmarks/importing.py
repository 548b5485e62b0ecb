"""`import sonde` against `import jax`, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys

from measure import Row, main

TIMED = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"
ROUNDS = 9


def import_time(module: str) -> float:
    done = subprocess.run([sys.executable, "-c", TIMED.format(module)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def measure() -> list[Row]:
    taken: dict[str, list[float]] = {"jax": [], "sonde": [], "control": []}
    for turn in range(ROUNDS):
        names = list(taken)[turn % 3 :] + list(taken)[: turn % 3]
        for name in names:
            taken[name].append(import_time("jax" if name == "control" else name))
    best = {name: min(times) for name, times in taken.items()}
    return [
        Row(
            "import sonde against import jax",
            best["sonde"] / best["jax"],
            1.1,
            control=best["control"] / best["jax"],
            detail=f"{best['sonde']:.3f} s against {best['jax']:.3f} s",
        )
    ]


if __name__ == "__main__":
    main(measure)
