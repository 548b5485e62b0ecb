"""`import sonde` and `import sonde.nnx` against `import jax`, in processes that do nothing else.

Every process imports jax, then the other, and prints how long each took: sonde adds far less than the import of jax
varies, so two processes cannot be compared. Bytecode is cached first, as in an installed package.
"""

from __future__ import annotations

import os
import subprocess
import sys

from measure import Row, main

TIMED = """
import time
start = time.perf_counter()
import jax
between = time.perf_counter()
import {module}
print(between - start, time.perf_counter() - between)
"""
BOUNDS = {"sonde": 1.1, "sonde.nnx": 1.2}
ROUNDS = 12


def import_times(module: str) -> tuple[float, float]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", TIMED.format(module=module)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    jax, sonde = map(float, done.stdout.split())
    return jax, sonde


def measure() -> list[Row]:
    return [against_jax(module, bound) for module, bound in BOUNDS.items()]


def against_jax(module: str, bound: float) -> Row:
    import_times(module)
    times = [import_times(module) for _ in range(ROUNDS)]
    jax, sonde = (min(column) for column in zip(*times))
    halves = [min(of_jax for of_jax, _ in times[i::2]) for i in range(2)]
    return Row(
        f"import {module} against import jax",
        (jax + sonde) / jax,
        bound,
        control=halves[1] / halves[0],
        detail=f"{sonde * 1e3:.0f} ms on top of {jax * 1e3:.0f} ms",
    )


if __name__ == "__main__":
    main(measure)
