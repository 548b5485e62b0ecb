"""`import sonde` against `import jax`, in processes that do nothing else.

Every process imports jax, then sonde, and says how long each took: what sonde adds is far less than what
the import of jax varies by, so two processes cannot be compared. Bytecode is cached first, as it is where a
package is installed.
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
import sonde
print(between - start, time.perf_counter() - between)
"""
ROUNDS = 12


def import_times() -> tuple[float, float]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", TIMED]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    jax, sonde = map(float, done.stdout.split())
    return jax, sonde


def measure() -> list[Row]:
    import_times()
    times = [import_times() for _ in range(ROUNDS)]
    jax, sonde = (min(column) for column in zip(*times))
    halves = [min(of_jax for of_jax, _ in times[i::2]) for i in range(2)]
    return [
        Row(
            "import sonde against import jax",
            (jax + sonde) / jax,
            1.1,
            control=halves[1] / halves[0],
            detail=f"{sonde * 1e3:.0f} ms on top of {jax * 1e3:.0f} ms",
        )
    ]


if __name__ == "__main__":
    main(measure)
