"""Random programs by the thousand, on all cores: `python -m tests.core.farm --seeds 0:20000 --workers 16`.

Each seed is a captured program (`checking.py`) and an edited one (`editing.py`). The workers are processes that print
one line for each program; one that is silent for too long is ended and replaced, and its program counts as not
finished. What was found is in the log, also if the run itself is ended.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.compiling import cache_programs_in, choose_devices_and_passes, compile_quickly

KINDS = ("capture", "edit")
OUTCOMES = ("agreed", "not compared", "disagreed", "not finished")

# JAX keeps what it traced and compiled, so a process that has run this many programs makes room for a new one.
PROGRAMS_OF_A_PROCESS = 150


def work(seeds: range, kinds: list[str]) -> None:
    """Checks programs, and prints what became of each as a line of JSON."""
    compile_quickly()
    gc.set_threshold(20_000, 20, 20)
    from tests.core.checking import check_program, drawn
    from tests.core.editing import check_seed
    from tests.core.seeds import DEPTH

    for seed, kind in itertools.product(seeds, kinds):
        start, error = time.monotonic(), ""
        try:
            if kind == "capture":
                compared = check_program(*drawn(seed, DEPTH))
            else:
                compared = check_seed(seed, DEPTH)
            outcome = "agreed" if compared else "not compared"
        except Exception as raised:
            outcome, error = "disagreed", f"{type(raised).__name__}: {raised}"[:1500]
        seconds = round(time.monotonic() - start, 2)
        print(
            json.dumps({"seed": seed, "kind": kind, "outcome": outcome, "seconds": seconds, "error": error}), flush=True
        )


def portions(seeds: range, kinds: list[str], workers: int) -> Iterator[range]:
    """The seeds that one process checks."""
    size = max(1, min(PROGRAMS_OF_A_PROCESS // len(kinds), len(seeds) // workers))
    for i in range(0, len(seeds), size):
        yield seeds[i : i + size]


def run_portion(seeds: range, options: argparse.Namespace, lines: queue.Queue[str], until: float) -> None:
    """Has processes check some seeds, one after the other: another one goes on where one hangs or dies."""
    left = list(itertools.product(seeds, options.kinds))
    while left and time.monotonic() < until:
        seed, kind = left[0]
        kinds = options.kinds if kind == options.kinds[0] else [kind]  # the second kind of a seed alone
        chosen = f"{seed}:{seeds.stop}" if kinds == options.kinds else f"{seed}:{seed + 1}"
        arguments = ["--seeds", chosen, "--kinds", *kinds, "--only-print"]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.core.farm", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        heard = queue.SimpleQueue[str]()

        def listen(process: subprocess.Popen[str] = process, heard: queue.SimpleQueue[str] = heard) -> None:
            assert process.stdout is not None
            for line in process.stdout:
                heard.put(line)
            heard.put("")

        threading.Thread(target=listen, daemon=True).start()
        hangs = False
        while True:
            patience = min(options.patience, until - time.monotonic())
            try:
                line = heard.get(timeout=max(patience, 0.1))
            except queue.Empty:
                hangs = time.monotonic() < until
                break
            if not line:
                break
            lines.put(line)
            left.remove((json.loads(line)["seed"], json.loads(line)["kind"]))
        process.kill()
        ended = process.wait()
        if left and (hangs or ended) and left[0] in itertools.product(range(seed, seeds.stop), kinds):
            if time.monotonic() < until:
                seed, kind = left.pop(0)
                why = f"silent for {options.patience} s" if hangs else f"the process ended with {ended}"
                lines.put(json.dumps({"seed": seed, "kind": kind, "outcome": "not finished", "error": why}))


def say(counts: Counter[tuple[str, str]], wrong: list[str], seconds: float) -> None:
    """One line: how many programs of each kind came to what, and the seeds of those that did not agree."""
    for_each = [
        f"{kind}: " + ", ".join(f"{counts[kind, o]} {o}" for o in OUTCOMES if counts[kind, o])
        for kind in KINDS
        if any(counts[kind, o] for o in OUTCOMES)
    ]
    total = sum(counts.values())
    print(f"[{seconds:.0f} s] {total} programs; {'; '.join(for_each)}; wrong: {' '.join(wrong) or 'none'}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", required=True, help="such as 100000:120000")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=3600, help="stop after this many")
    parser.add_argument("--patience", type=float, default=180, help="seconds for one program")
    parser.add_argument("--every", type=float, default=15, help="seconds between two summaries")
    parser.add_argument("--log", default="build/programs.jsonl")
    parser.add_argument("--only-print", action="store_true", help="check the seeds in this process")
    options = parser.parse_args()
    first, _, last = options.seeds.partition(":")
    seeds = range(int(first), int(last))
    if options.only_print:
        work(seeds, options.kinds)
        return 0

    choose_devices_and_passes()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    # One thread for each process: the programs are tiny.
    os.environ["XLA_FLAGS"] += " --xla_cpu_multi_thread_eigen=false"
    start = time.monotonic()
    until = start + options.seconds
    lines = queue.Queue[str]()
    waiting = portions(seeds, options.kinds, options.workers)
    lock = threading.Lock()

    def worker() -> None:
        while time.monotonic() < until:
            with lock:
                portion = next(waiting, None)
            if portion is None:
                return
            run_portion(portion, options, lines, until)

    Path(options.log).parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, open(options.log, "a", encoding="utf-8") as log:
        cache_programs_in(folder)
        workers = [threading.Thread(target=worker, daemon=True) for _ in range(options.workers)]
        for thread in workers:
            thread.start()
        counts, wrong, said = Counter[tuple[str, str]](), list[str](), start
        while any(thread.is_alive() for thread in workers) or not lines.empty():
            try:
                line = lines.get(timeout=1)
            except queue.Empty:
                line = ""
            if line:
                log.write(line.rstrip() + "\n")
                log.flush()
                checked = json.loads(line)
                counts[checked["kind"], checked["outcome"]] += 1
                if checked["outcome"] in ("disagreed", "not finished"):
                    wrong.append(f"{checked['kind']}/{checked['seed']}")
                    print(f"{wrong[-1]} {checked['outcome']}: {checked['error'][:300]!r}", flush=True)
            if time.monotonic() - said > options.every:
                said = time.monotonic()
                say(counts, wrong, said - start)
        say(counts, wrong, time.monotonic() - start)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
