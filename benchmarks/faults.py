"""Faults in programs of other packages: what Sonde, `jax_debug_nans`, `checkify` and Equinox say of each.

The programs are those of `tests/why/package_programs.py`, in each of which one line makes a NaN or an Inf, in two ways;
and those of `tests/why/package_misuses.py`, as many as are installed: solvers, samplers, optimizers, networks,
simulators. A tool has named a fault if it names the line and the operation. Every tool runs once, on a function that
is made anew. Times are CPU time, which other work on the machine changes little; `run` is that of compiling and running
the program itself.

    python benchmarks/faults.py --page docs/concepts/planted-faults.md
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import os
import re
import statistics
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")  # read when Keras is imported

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("sonde", "jax_debug_nans", "checkify", "eqx.debug")
NAMED, LINE, FOUND, DOUBT, WRONG, MISSED, FAILED = "named", "line", "found", "doubt", "wrong", "missed", "failed"
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


@dataclasses.dataclass(frozen=True)
class Fault:
    """A program with a fault, and what is right.

    Attributes:
        name: The program and what is wrong with it.
        make: Makes the function and its arguments.
        operations: The operation, by the names that versions of JAX have for it.
        has_line: Whether a line of a file is the one.
    """

    name: str
    make: Callable[[], tuple[Callable[..., Any], Sequence[Any]]]
    operations: Sequence[str]
    has_line: Callable[[str, int], bool]

    def judge(self, error: BaseException, words: Sequence[str]) -> tuple[str, str]:
        """What an exception says, if one of these words in it names the operation."""
        text = "".join(traceback.format_exception(error))
        has_line = any(self.has_line(file, int(line)) for file, line in _FRAME.findall(text))
        named = has_line and any(word in str(error) for word in words)
        return (NAMED if named else LINE if has_line else FOUND), (str(error).splitlines() or [""])[0]


def with_sonde(f: Callable[..., Any], args: Sequence[Any], fault: Fault) -> tuple[str, str]:
    """What `first_nonfinite` says."""
    import sonde

    answer = sonde.first_nonfinite(f, discarded=True)(*args)
    if answer is None:
        return MISSED, ""
    text = str(answer).partition("\n")[0]
    file, _, line = answer.source.rpartition(":")
    if answer.operation in fault.operations and fault.has_line(file, int(line or 0)):
        return NAMED, text
    return DOUBT if answer.doubt else WRONG, text


def with_debug_nans(f: Callable[..., Any], args: Sequence[Any], fault: Fault) -> tuple[str, str]:
    """What JAX says with its setting for NaN and, if that finds nothing, with that for Inf too."""
    import jax

    for infs in (False, True):
        with jax.debug_nans(True), jax.debug_infs(infs):
            try:
                jax.block_until_ready(f(*args))
            except FloatingPointError as error:
                return fault.judge(error, [f"encountered in {name}" for name in fault.operations])
    return MISSED, ""


def with_checkify(f: Callable[..., Any], args: Sequence[Any], fault: Fault) -> tuple[str, str]:
    """What `checkify` with checks of floats says."""
    from jax.experimental import checkify

    error, _ = checkify.checkify(f, errors=checkify.float_checks)(*args)
    try:
        error.throw()
    except Exception as thrown:
        divisions = ["division by zero"] if "div" in fault.operations else []
        return fault.judge(thrown, [*divisions, *(f"primitive: {name}." for name in fault.operations)])
    return MISSED, ""


def with_equinox(f: Callable[..., Any], args: Sequence[Any], fault: Fault) -> tuple[str, str]:
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
        return fault.judge(error, fault.operations) if "nan" in str(error).lower() else (FAILED, str(error)[:80])
    return MISSED, ""


def faults_of(package: str) -> Iterator[Fault]:
    """The faults in the programs of a package."""
    from package_misuses import MISUSES
    from package_programs import FAULTS, PROGRAMS, planted_line

    for number, (name, make) in enumerate(PROGRAMS.items()):
        if name.partition("_")[0] == package:
            for kind in [*FAULTS][number % 2 :: 2]:
                file, _, line = planted_line(kind).rpartition(":")
                own_line = lambda f, n, file=file, line=line: (f, n) == (file, int(line))
                yield Fault(f"{name} {kind}", lambda make=make, kind=kind: make(FAULTS[kind]), (kind,), own_line)
    for name, misuse in MISUSES.items():
        if name.partition("_")[0] == package:
            yield Fault(name, misuse.make, misuse.operations, misuse.has_line)


def packages() -> list[str]:
    """All packages that have programs."""
    from package_misuses import MISUSES
    from package_programs import PROGRAMS

    return list(dict.fromkeys(name.partition("_")[0] for name in (*PROGRAMS, *MISUSES)))


def try_fault(fault: Fault, tools: Sequence[str]) -> dict[str, Any]:
    """What tools say of a fault: for each a verdict, the text, and the processor time."""
    import jax

    runs = dict(zip(TOOLS, (with_sonde, with_debug_nans, with_checkify, with_equinox)))
    answers: dict[str, Any] = {}
    for tool in tools:
        f, args = fault.make()
        jax.clear_caches()
        started = time.process_time()
        try:
            if tool == "run":
                verdict, text = NAMED, ""
                jax.block_until_ready(f(*args))
            else:
                verdict, text = runs[tool](f, args, fault)
        except Exception as error:
            verdict, text = FAILED, f"{type(error).__name__}: {str(error)[:120]}"
        answers[tool] = [verdict, text, time.process_time() - started]
    return answers


def tried(names: Sequence[str], tools: Sequence[str], file: Path | None) -> list[dict[str, Any]]:
    """What tools say of the faults in some packages. What is in the file is not tried again, and the rest is added."""
    rows: dict[str, dict[str, Any]] = {}
    if file is not None and file.exists():
        rows = {(row := json.loads(line))["fault"]: row for line in file.read_text(encoding="utf-8").splitlines()}
    for package in names:
        for fault in faults_of(package):
            row = rows.get(fault.name, {"package": package, "fault": fault.name})
            left = [tool for tool in tools if tool not in row]
            if not left:
                continue
            try:
                fault.make()
            except Exception as error:  # a package that does not run with this JAX is left out
                print(f"{fault.name}: {type(error).__name__}: {error}", file=sys.stderr)
                continue
            rows[fault.name] = row | try_fault(fault, left)
            print(fault.name, {tool: rows[fault.name][tool][0] for tool in left}, file=sys.stderr, flush=True)
            if file is not None:
                file.write_text("".join(json.dumps(row) + "\n" for row in rows.values()), encoding="utf-8")
    return list(rows.values())


def page_of(rows: Sequence[dict[str, Any]]) -> str:
    """The page, in Markdown."""
    import jax

    packages = sorted({row["package"] for row in rows})
    device = jax.devices()[0].device_kind
    n_misuses = sum(" " not in row["fault"] for row in rows)
    lines = [
        "# Planted faults",
        "",
        f"{len(rows)} faults in programs on {len(packages)} packages: solvers, samplers, optimizers, networks and",
        f"simulators. {len(rows) - n_misuses} are planted: in a function that the package calls, one line makes a NaN",
        "or an Inf (`log` of -1, 0 / 0, `sqrt` of -2, `exp` of 1000). Many of these programs have Infs that are",
        f"meant, and checks of their own. {n_misuses} are what people get wrong: an epsilon of zero, an empty mask, a",
        "value at the bound of a density. There the first NaN or Inf is made inside the package, and the truth was",
        "read from its source. A tool has *named* the fault if it names the line and the operation.",
        "",
        f"Written by `benchmarks/faults.py`, with JAX {jax.__version__} on {device}. Each tool ran once on a",
        "function that was not compiled before; times are CPU time, as multiples of compiling and running the",
        "program.",
        "",
        "| tool | tried | named | line only | neither | wrong | in doubt | nothing | failed | time | longest |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for tool in TOOLS:
        its_rows = [row for row in rows if tool in row]
        counts = collections.Counter(row[tool][0] for row in its_rows)
        ratios = [row[tool][2] / row["run"][2] for row in its_rows if row[tool][0] != FAILED] or [0.0]
        numbers = [len(its_rows), *(counts[verdict] for verdict in (NAMED, LINE, FOUND, WRONG, DOUBT, MISSED, FAILED))]
        shown = " | ".join(map(str, numbers))
        lines.append(f"| {tool} | {shown} | {statistics.median(ratios):.1f} | {max(ratios):.1f} |")
    lines += [
        "",
        "`jax_debug_nans` was on and, where nothing was found, `jax_debug_infs` as well. `checkify` had",
        "`float_checks`, which do not look at Infs. `equinox.debug.backward_nan` was put at the arguments: it looks",
        "at gradients, and names the place where it is put. The time is the median.",
        "",
        "## By package",
        "",
        "How many faults were named; a dash where the tool was not tried.",
        "",
        f"| package | faults | {' | '.join(TOOLS)} |",
        "|---|---|" + "---|" * len(TOOLS),
    ]
    for package in packages:
        own = [row for row in rows if row["package"] == package]
        cells = [
            str(sum(row[tool][0] == NAMED for row in own if tool in row)) if any(tool in row for row in own) else "-"
            for tool in TOOLS
        ]
        lines.append(f"| {package} | {len(own)} | {' | '.join(cells)} |")
    odd = [row for row in rows if row["sonde"][0] != NAMED]
    if odd:
        lines += ["", "## What Sonde did not name", ""]
        lines += [f"- {row['fault'].replace('_', ' ')}: {row['sonde'][0]}. {row['sonde'][1]}" for row in odd]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, help="where to write the page; by default, it is printed")
    parser.add_argument("--rows", type=Path, help="all answers, as lines of JSON; a run goes on where it ended")
    parser.add_argument("--tools", nargs="+", default=["run", *TOOLS], help="which tools to run")
    parser.add_argument("names", nargs="*", help="packages; by default, all that are installed")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    from package_programs import is_installed

    names = options.names or [name for name in packages() if is_installed(name)]
    page = page_of(tried(names, options.tools, options.rows))
    options.page.write_text(page, encoding="utf-8") if options.page else print(page)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests" / "why"))  # packages install folders named `tests`
    main()
