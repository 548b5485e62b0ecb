"""Runs a sample of mutants against the tests that enter the changed functions, and says how many are noticed.

    python -m tests.mutants src/sonde/core/modules --tests tests/core/modules --sample 20

The working tree is not touched: mutants are in copies of the source. A mutant that survives is either a gap in the
tests, or changes nothing that matters; then it belongs in `accepted.txt`, with the reason above it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.mutants.changes import Mutant, mutants_of
from tests.rotation import rotation

ROOT = Path(__file__).parent.parent.parent
ACCEPTED = Path(__file__).parent / "accepted.txt"
MOST_TESTS = 60  # of those that enter a function; the rest say the same again
SECONDS = 600  # a program that no longer ends is noticed too


def pytest_of(source: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs pytest with this source."""
    env = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1", **environment}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:randomly", *arguments]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=SECONDS)


def tests_by_function(source: Path, tests: list[str]) -> dict[str, list[str]]:
    """For the file and first line of a function, the tests that enter it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "entered.json")
        where = {"SONDE_ENTERED": str(file), "SONDE_SOURCE": str(source)}
        chosen = ["-m", "not thorough and not browser and not transformers", *tests]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.mutants.entered", *chosen]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source), str(ROOT)]), **where}
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"the tests must pass before the source is changed:\n{done.stdout[-3000:]}")
        return json.loads(file.read_text())


def survives(mutant: Mutant, source: Path, tests: list[str]) -> bool:
    """Whether no test fails on a mutant; `source` is a copy, which is put right again."""
    file = source / mutant.file
    original = file.read_text(encoding="utf-8")
    file.write_text(mutant.source, encoding="utf-8")
    try:
        return pytest_of(source, "-m", "not thorough", *tests).returncode == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        file.write_text(original, encoding="utf-8")


def accepted() -> set[str]:
    """The names of survivors that change nothing that matters."""
    return {line for line in ACCEPTED.read_text().splitlines() if line and not line.startswith("#")}


def main() -> int:
    """Returns 1 if fewer mutants than asked for are noticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", default=["src/sonde"], help="files or folders of the source")
    parser.add_argument("--tests", nargs="*", default=["tests"], help="the tests that may notice a mutant")
    parser.add_argument("--sample", type=int, default=40)
    parser.add_argument("--seed", type=int, default=None, help="of the sample; depends on the commit by default")
    parser.add_argument("--least", type=float, default=0.92, help="the share that must be noticed")
    options = parser.parse_args()
    seed = rotation() if options.seed is None else options.seed
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "src")
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        places = [Path(path).resolve().relative_to(ROOT / "src") for path in options.paths]
        files = [
            f for p in places for f in (sorted((source / p).rglob("*.py")) if (source / p).is_dir() else [source / p])
        ]
        mutants = [mutant for file in files for mutant in mutants_of(source, file)]
        tests = tests_by_function(source, options.tests)
        random.Random(seed).shuffle(mutants)
        noticed, survivors = 0, []
        for mutant in mutants:
            if noticed + len(survivors) == options.sample:
                break
            if mutant.name in accepted():
                continue
            entering = tests.get(f"{mutant.file}:{mutant.line}", [])
            entering = random.Random(seed).sample(entering, min(MOST_TESTS, len(entering)))
            if not entering or survives(mutant, source, entering):
                survivors.append(f"{mutant.name}  ({len(entering)} tests)")
                print(f"survives: {survivors[-1]}", flush=True)
            else:
                noticed += 1
    total = noticed + len(survivors)
    print(f"{noticed} of {total} mutants are noticed, {noticed / max(1, total):.0%} (--seed {seed})")
    return int(noticed < options.least * total)


if __name__ == "__main__":
    sys.exit(main())
