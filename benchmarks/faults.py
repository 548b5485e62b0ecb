"""Faults planted in programs of other packages: what Sonde, `jax_debug_nans`, `checkify` and Equinox say of each.

The programs are those of `tests/why/package_programs.py`, as many as are installed: solvers, samplers, optimizers,
networks, simulators. In each of them one line makes a NaN or an Inf, in four ways. A tool has named the fault if it
names the planted line and the operation. Each program has a process of its own, in which every tool runs once, on a
function that is made anew; `run` is the time in which the program itself is compiled and run.

    python benchmarks/faults.py --jobs 2 --page docs/concepts/planted-faults.md
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import statistics
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("sonde", "jax_debug_nans", "checkify", "eqx.debug")
NAMED, LINE, FOUND, DOUBT, WRONG, MISSED, FAILED = "named", "line", "found", "doubt", "wrong", "missed", "failed"
_MOST_SECONDS = 540


def with_sonde(f: Callable[..., Any], args: Sequence[Any], line: str, kind: str) -> tuple[str, str]:
    """What `first_nonfinite` says."""
    import sonde

    found = sonde.first_nonfinite(f, discarded=True)(*args)
    if found is None:
        return MISSED, ""
    text = str(found).partition("\n")[0]
    if (found.source, found.operation) == (line, kind):
        return NAMED, text
    return DOUBT if found.doubt else WRONG, text


def with_debug_nans(f: Callable[..., Any], args: Sequence[Any], line: str, kind: str) -> tuple[str, str]:
    """What JAX says with its setting for NaN, and for Inf where the fault makes an Inf."""
    import jax

    with jax.debug_nans(True), jax.debug_infs(kind == "exp"):
        try:
            jax.block_until_ready(f(*args))
        except FloatingPointError as error:
            return _judged(error, line, f"encountered in {kind}")
    return MISSED, ""


def with_checkify(f: Callable[..., Any], args: Sequence[Any], line: str, kind: str) -> tuple[str, str]:
    """What `checkify` with checks of floats says."""
    from jax.experimental import checkify

    error, _ = checkify.checkify(f, errors=checkify.float_checks)(*args)
    try:
        error.throw()
    except Exception as thrown:
        is_division = kind == "div" and "division by zero" in str(thrown)
        return _judged(thrown, line, "division by zero" if is_division else f"primitive: {kind}.")
    return MISSED, ""


def with_equinox(f: Callable[..., Any], args: Sequence[Any], line: str, kind: str) -> tuple[str, str]:
    """What `equinox.debug.backward_nan` says that is put at the arguments: it knows gradients alone, and no line."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    def loss(*args: Any) -> Any:
        args = jax.tree.map(lambda x: eqx.debug.backward_nan(x, name="argument"), args)
        floats = [x for x in jax.tree.leaves(f(*args)) if jnp.issubdtype(jnp.result_type(x), jnp.floating)]
        return sum(jnp.sum(x) for x in floats)

    try:
        jax.block_until_ready(jax.grad(loss, allow_int=True)(*args))
    except Exception as error:
        return (_judged(error, line, kind)) if "NaN" in str(error) or "nan" in str(error) else (FAILED, str(error)[:80])
    return MISSED, ""


def _judged(error: BaseException, line: str, words: str) -> tuple[str, str]:
    text = "".join(traceback.format_exception(error))
    file, _, number = line.rpartition(":")
    has_line = f'File "{file}", line {number}' in text
    named = has_line and words in str(error)
    return (NAMED if named else LINE if has_line else FOUND), str(error).splitlines()[0]


def try_program(name: str) -> None:
    """Plants every fault in one program, and prints what the tools say, as lines of JSON."""
    warnings.simplefilter("ignore")
    import jax
    from tests.why.package_programs import FAULTS, PROGRAMS, planted_line

    runs = dict(zip(TOOLS, (with_sonde, with_debug_nans, with_checkify, with_equinox)))
    f, args = PROGRAMS[name](lambda x: x)
    jax.block_until_ready(f(*args))  # a package that does not run with this JAX is left out
    for kind, fault in FAULTS.items():
        row: dict[str, Any] = {"program": name, "kind": kind}
        for tool in ("run", *TOOLS):
            f, args = PROGRAMS[name](fault)
            started = time.perf_counter()
            try:
                if tool == "run":
                    verdict, text = NAMED, ""
                    jax.block_until_ready(f(*args))
                else:
                    verdict, text = runs[tool](f, args, planted_line(kind), kind)
            except Exception as error:
                verdict, text = FAILED, f"{type(error).__name__}: {str(error)[:120]}"
            row[tool] = [verdict, text, time.perf_counter() - started]
        print(json.dumps(row), flush=True)


def rows_of(names: Sequence[str], jobs: int, file: Path | None) -> list[dict[str, Any]]:
    """The lines of all programs, each of which has a process. Those in the file are not tried again."""
    rows: list[dict[str, Any]] = []
    if file is not None and file.exists():
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    running: dict[str, subprocess.Popen[str]] = {}
    waiting = [name for name in names if not any(row["program"] == name for row in rows)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    while waiting or running:
        while waiting and len(running) < jobs:
            name = waiting.pop(0)
            command = ["timeout", str(_MOST_SECONDS), sys.executable, __file__, "--only", name]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            running[name] = subprocess.Popen(command, env=environment, cwd=ROOT, **pipes)
        for name, process in list(running.items()):
            try:
                out, errors = process.communicate(timeout=0.2)
            except subprocess.TimeoutExpired:
                continue
            del running[name]
            new = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
            rows += new
            if file is not None:
                file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
            last = (errors.strip().splitlines() or ["nothing was printed"])[-1]
            print(f"{name}: {[row['sonde'][0] for row in new] or last}", file=sys.stderr, flush=True)
    return rows


def page_of(rows: Sequence[dict[str, Any]]) -> str:
    """The page, in Markdown."""
    import jax

    packages = {row["program"].partition("_")[0] for row in rows}
    device = jax.devices()[0].device_kind
    programs = {row["program"] for row in rows}
    lines = [
        "# Planted faults",
        "",
        f"{len(rows)} faults in {len(programs)} programs on {len(packages)} packages: solvers, samplers,",
        "optimizers, networks and simulators. Many have Infs that are meant, and checks of their own. In each,",
        "one line makes a NaN or an Inf (`log` of -1, 0 / 0, `sqrt` of -2, `exp` of 1000). A tool has *named*",
        "the fault if it names the line and the operation.",
        "",
        f"Written by `benchmarks/faults.py`, with JAX {jax.__version__} on {device}. Each tool ran once on a",
        "function that was not compiled before; times are multiples of compiling and running the program.",
        "",
        "| tool | named | line only | neither | wrong | wrong, with doubt | nothing | failed | time | longest |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for tool in TOOLS:
        counts = collections.Counter(row[tool][0] for row in rows)
        ratios = [row[tool][2] / row["run"][2] for row in rows if row[tool][0] != FAILED] or [0.0]
        numbers = [counts[verdict] for verdict in (NAMED, LINE, FOUND, WRONG, DOUBT, MISSED, FAILED)]
        shown = " | ".join(map(str, numbers))
        lines.append(f"| {tool} | {shown} | {statistics.median(ratios):.1f} | {max(ratios):.1f} |")
    lines += [
        "",
        "`jax_debug_nans` was on, and `jax_debug_infs` for the faults that make an Inf. `checkify` had",
        "`float_checks`, which do not look at Infs. `equinox.debug.backward_nan` was put at the arguments: it looks",
        "at gradients, and names the place where it is put. The time is the median.",
        "",
        "## By program",
        "",
        "Of the four faults, how many were named.",
        "",
        f"| program | {' | '.join(TOOLS)} |",
        "|---|" + "---|" * len(TOOLS),
    ]
    for program in sorted({row["program"] for row in rows}):
        own = [row for row in rows if row["program"] == program]
        cells = [str(sum(row[tool][0] == NAMED for row in own)) for tool in TOOLS]
        lines.append(f"| {program.replace('_', ' ')} | {' | '.join(cells)} |")
    odd = [row for row in rows if row["sonde"][0] != NAMED]
    if odd:
        lines += ["", "## What Sonde did not name", ""]
        lines += [
            f"- {row['program'].replace('_', ' ')}, {row['kind']}: {row['sonde'][0]}. {row['sonde'][1]}" for row in odd
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1, help="how many programs at a time")
    parser.add_argument("--page", type=Path, help="where to write the page; by default, it is printed")
    parser.add_argument("--rows", type=Path, help="all answers, as lines of JSON; a run goes on where it ended")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", help="programs; by default, all that are installed")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if options.only:
        try_program(options.only)
        return
    from tests.why.package_programs import PROGRAMS, is_installed

    names = options.names or [name for name in PROGRAMS if is_installed(name)]
    rows = rows_of(names, options.jobs, options.rows)
    page = page_of(rows)
    options.page.write_text(page, encoding="utf-8") if options.page else print(page)


if __name__ == "__main__":
    main()
