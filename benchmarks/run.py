"""Every benchmark, one table. Each runs in a process of its own; the exit status says if all bounds hold.

Without arguments all of them run; otherwise those named, as in `python benchmarks/run.py eager tracing`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from measure import Row, table

HERE = Path(__file__).parent
ENGINE = ("compiled", "calling", "eager", "tracing", "gradients", "importing", "gpu_transformer")


def rows_of(name: str) -> list[Row]:
    done = subprocess.run([sys.executable, HERE / f"{name}.py", "--json"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"benchmark {name} failed:\n{done.stderr}")
    return [Row(**row) for row in json.loads(done.stdout.splitlines()[-1])]


def main(names: list[str]) -> int:
    unknown = [name for name in names if not (HERE / f"{name}.py").exists()]
    if unknown:
        sys.exit(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(ENGINE)}")
    rows: list[Row] = []
    for name in names or ENGINE:
        start = time.perf_counter()
        rows += rows_of(name)
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    print(table(rows))
    missed = [row for row in rows if row.verdict == "MISSED"]
    print(f"\n{len(missed)} bounds missed" if missed else "\nall bounds hold")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
