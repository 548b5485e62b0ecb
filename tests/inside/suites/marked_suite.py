"""The test suite of another library, run as it is and with all of the library marked and captured.

    python tests/inside/suites/marked_suite.py equinox.nn,equinox PATH... [OPTIONS OF PYTEST]

Every test runs as the function of a capture that looks into everything that the first argument names. What fails runs
again in another process, without Sonde, which collects the same files: a test that passes without must pass with it;
those that do not are listed, and the exit status says so. `--grads` captures gradients too, so that values pass through
their sites; `--expressions` the values of calls and operators.

As a pytest plugin (`-p marked_suite`, with this folder on the path) this file reads the environment variables
`SONDE_MARKED`, the names, `SONDE_OUTCOMES`, a file for the outcomes, and `SONDE_ONLY`, a file with the tests to run.

Some tests cannot pass: those that say that an unused value is not computed, or that a buffer cannot be donated. A
captured value is used, and is an output. `docs/how-to/look-inside.md` lists them.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

_outcomes: dict[str, str] = {}
_messages: dict[str, str] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    """Puts a capture around the body of a test."""
    names = os.environ.get("SONDE_MARKED")
    if not names:
        return
    import sonde

    plain = item.runtest
    what = names.split(",")
    for name in what:
        importlib.import_module(name.partition(":")[0].removesuffix(".*"))
    inside = sonde.Inside(*what, expressions="SONDE_EXPRESSIONS" in os.environ)
    item.runtest = lambda: sonde.capture(plain, grads="SONDE_GRADS" in os.environ, inside=inside)()[0]


def pytest_runtest_logreport(report):
    """Keeps the outcome of a test: its first phase that did not pass."""
    if _outcomes.get(report.nodeid, "passed") == "passed":
        outcome = "xfailed" if hasattr(report, "wasxfail") else report.outcome
        _outcomes[report.nodeid] = outcome
        if outcome == "failed":
            _messages[report.nodeid] = str(report.longrepr)[-3000:]


def pytest_collection_modifyitems(items):
    """Runs only some of the tests, if so asked."""
    if "SONDE_ONLY" in os.environ:
        only = set(json.loads(Path(os.environ["SONDE_ONLY"]).read_text()))
        items[:] = [item for item in items if item.nodeid in only]


def pytest_sessionfinish():
    """Writes the outcomes."""
    if "SONDE_OUTCOMES" in os.environ:
        Path(os.environ["SONDE_OUTCOMES"]).write_text(json.dumps((_outcomes, _messages)))


def outcomes(names: str, arguments: list[str], options: dict[str, str], only: list[str] | None = None) -> list[Any]:
    """The outcome of every test of a run, or of some of them, and what the failures say."""
    here = Path(__file__).resolve()
    with tempfile.TemporaryDirectory() as own:
        file = Path(own) / "outcomes.json"
        path = os.pathsep.join([str(here.parent), str(here.parents[3] / "src"), os.environ.get("PYTHONPATH", "")])
        env = {**os.environ, "SONDE_OUTCOMES": str(file), "SONDE_MARKED": names, "PYTHONPATH": path, **options}
        if only is not None:
            chosen = Path(own) / "only.json"
            chosen.write_text(json.dumps(only))
            env["SONDE_ONLY"] = str(chosen)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "marked_suite"]
        subprocess.run([*command, *arguments], env=env, check=False)
        return json.loads(file.read_text()) if file.exists() else [{}, {}]


def main() -> int:
    """Runs a suite with everything marked, and what fails again without."""
    given = sys.argv[1:]
    options = {name.upper().replace("--", "SONDE_"): "1" for name in ("--grads", "--expressions") if name in given}
    names, *arguments = [x for x in given if x not in ("--grads", "--expressions", "--")]
    marked, messages = outcomes(names, arguments, options)
    failed = [test for test, outcome in marked.items() if outcome == "failed"]
    without = outcomes("", arguments, {}, failed)[0] if failed else {}
    lost = [test for test in failed if without.get(test) != "failed"]
    for test in lost:
        print(f"\n=== {test}: {without.get(test, 'did not run')} without\n{messages.get(test, '')}")
    counts = {kind: sum(x == kind for x in marked.values()) for kind in ("passed", "skipped", "xfailed", "failed")}
    told = ", ".join(f"{n} {kind}" for kind, n in counts.items() if n)
    print(f"with {names} marked: {told}; of the failed, {len(lost)} do not fail without")
    return 1 if lost or not counts["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
