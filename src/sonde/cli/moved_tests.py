"""Runs a command with Flax and with Sonde in its place, and compares what its tests say.

pytest writes the outcomes, times and printed text of each test to a file, which `PYTEST_ADDOPTS` asks for; of other
commands the exit code and the printed lines are compared. The second run has `sonde.alias` on from its first import of
Flax (`aliased/sitecustomize.py`), in child processes too.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from pathlib import Path

from sonde.cli.aliased.sitecustomize import REPORTS

ALIASED = Path(__file__).parent / "aliased"
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


@dataclasses.dataclass(frozen=True)
class OneTest:
    """A test in one run.

    Attributes:
        outcome: "passed", "failed" or "skipped".
        seconds: How long it took.
        message: The first line of why it failed.
        printed: What it printed.
    """

    outcome: str
    seconds: float
    message: str = ""
    printed: str = ""


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of the command.

    Attributes:
        code: Its exit code.
        seconds: How long it took.
        printed: What it printed.
        tests: Its tests by name; None if it is not pytest.
        asks: What packages asked of Flax; None if Flax was not imported, or for the run with Flax.
    """

    code: int
    seconds: float
    printed: str
    tests: Mapping[str, OneTest] | None
    asks: Sequence[Mapping[str, str]] | None


@dataclasses.dataclass(frozen=True)
class Difference:
    """Something that differs between the two runs.

    Attributes:
        test: The name of the test; empty for the command itself.
        kind: "fails with Sonde", "fails with Flax", "not run with Sonde", "not run with Flax", "prints" or "exit code".
        flax: What it is with Flax.
        sonde: What it is with Sonde.
    """

    test: str
    kind: str
    flax: str
    sonde: str


def run(command: Sequence[str], *, aliased: bool) -> Run:
    """Runs a command and reads what its tests say.

    Args:
        command: The command and its arguments.
        aliased: Whether Flax means Sonde.
    """
    with tempfile.TemporaryDirectory() as folder:
        outcomes = Path(folder, "tests.xml")
        options = f"--junitxml={outcomes} -o junit_logging=system-out"
        environment = {**os.environ, "PYTEST_ADDOPTS": f"{os.environ.get('PYTEST_ADDOPTS', '')} {options}".strip()}
        if aliased:
            path = os.environ.get("PYTHONPATH")
            environment |= {REPORTS: folder, "PYTHONPATH": os.pathsep.join([str(ALIASED), *([path] if path else [])])}
        start = time.perf_counter()
        process = subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        seconds = time.perf_counter() - start
        tests = _tests(outcomes) if outcomes.exists() else None
        reports = [json.loads(file.read_text()) for file in sorted(Path(folder).glob("*.json"))] if aliased else []
    asks = list({(a["name"], a["answer"]): a for asks in reports for a in asks}.values()) if reports else None
    return Run(process.returncode, seconds, process.stdout, tests, asks)


def _tests(file: Path) -> dict[str, OneTest]:
    tests: dict[str, OneTest] = {}
    for case in ET.parse(file).getroot().iter("testcase"):
        outcome, message = "passed", ""
        for kind in ("failure", "error", "skipped"):
            element = case.find(kind)
            if element is not None:
                outcome = "skipped" if kind == "skipped" else "failed"
                message = (element.get("message") or "").strip().partition("\n")[0]
        name = f"{case.get('classname')}::{case.get('name')}"
        tests[name] = OneTest(
            outcome, float(case.get("time") or 0), message, (case.findtext("system-out") or "").strip()
        )
    return tests


def differences(flax: Run, sonde: Run, *, rtol: float) -> list[Difference]:
    """What differs between the two runs; of tests that print numbers, those that differ by more than `rtol`."""
    if flax.tests is None or sonde.tests is None:
        return _of_commands(flax, sonde, rtol)
    differing: list[Difference] = []
    for name in [*flax.tests, *(name for name in sonde.tests if name not in flax.tests)]:
        a, b = flax.tests.get(name), sonde.tests.get(name)
        if a is None or b is None:
            missing = "Flax" if a is None else "Sonde"
            outcomes = a.outcome if a else "", b.outcome if b else ""
            differing.append(Difference(name, f"not run with {missing}", *outcomes))
        elif a.outcome != b.outcome:
            failing = "Sonde" if b.outcome == "failed" else "Flax" if a.outcome == "failed" else ""
            kind = f"fails with {failing}" if failing else "skipped with one"
            differing.append(Difference(name, kind, a.message or a.outcome, b.message or b.outcome))
        elif a.outcome == "passed" and (lines := first_difference(a.printed, b.printed, rtol=rtol)):
            differing.append(Difference(name, "prints", *lines))
    return differing


def known_tests(file: str) -> list[str]:
    """The names in a list of tests that are known to differ; what follows ` #` in a line says why."""
    names = [line.partition(" #")[0].strip() for line in Path(file).read_text().splitlines()]
    return [name for name in names if name and not name.startswith("#")]


def split_known(differing: Sequence[Difference], known: Sequence[str], flax: Run) -> tuple[list[Difference], list[str]]:
    """The differences that are not known, and the known tests that ran without a difference."""
    names = {difference.test for difference in differing}
    gone = [test for test in known if test in (flax.tests or {}) and test not in names]
    return [difference for difference in differing if difference.test not in known], gone


def _of_commands(flax: Run, sonde: Run, rtol: float) -> list[Difference]:
    if flax.code != sonde.code:
        last = [(run.printed.strip().splitlines() or [""])[-1] for run in (flax, sonde)]
        return [Difference("", "exit code", f"{flax.code}: {last[0]}", f"{sonde.code}: {last[1]}")]
    lines = first_difference(flax.printed, sonde.printed, rtol=rtol)
    return [Difference("", "prints", *lines)] if lines else []


def first_difference(a: str, b: str, *, rtol: float) -> tuple[str, str] | None:
    r"""The first lines of two texts that differ, None if there are none; numbers may differ by `rtol`.

    Example:
        >>> first_difference("loss 1.00000001", "loss 1.0", rtol=1e-6) is None
        True
        >>> first_difference("a\nloss 1.5", "a\nloss 1.4", rtol=1e-6)
        ('loss 1.5', 'loss 1.4')
    """
    lines = a.splitlines(), b.splitlines()
    for i in range(max(map(len, lines))):
        one, two = (text[i] if i < len(text) else "" for text in lines)
        if one != two and not _same_numbers(one, two, rtol):
            return one, two
    return None


def _same_numbers(a: str, b: str, rtol: float) -> bool:
    if _NUMBER.sub("#", a) != _NUMBER.sub("#", b):
        return False
    pairs = zip(map(float, _NUMBER.findall(a)), map(float, _NUMBER.findall(b)))
    return all(abs(x - y) <= rtol * max(abs(x), abs(y)) for x, y in pairs)
