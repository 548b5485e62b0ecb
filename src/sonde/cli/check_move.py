"""`sonde check-move`: run a package's tests with Flax and with Sonde, and say what differs."""

from __future__ import annotations

import dataclasses
import importlib.util
import shutil
import sys
from typing import TYPE_CHECKING

import click

from sonde.cli import options
from sonde.cli.exit_codes import FINE, FOUND, Failed, Unusable
from sonde.cli.output import busy, show, show_json

if TYPE_CHECKING:
    from sonde.cli.moved_tests import Difference, Run

EPILOG = """\b
Examples:
  sonde check-move python -m pytest tests
  sonde check-move -- python train.py --steps 3

\b
Exit codes:
  0  nothing differs
  1  something differs: a test that fails with one of them, or a printed value; or a known difference is gone
  2  the command cannot be used: it does not exist, runs no test, or never imports Flax
  3  everything fails with Flax already
"""
_SHOWN = 20  # differences that are listed; --json has all


@click.command("check-move", epilog=EPILOG, context_settings={"ignore_unknown_options": True})
@click.argument("command", nargs=-1, required=True, metavar="PACKAGE | COMMAND...", type=click.UNPROCESSED)
@click.option("--rtol", type=float, default=1e-5, show_default=True, help="Printed numbers may differ by this factor.")
@click.option(
    "--known",
    "known_file",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Tests that are known to differ: a name in each line, then `# ` and the reason. One that no longer differs is "
    "reported.",
)
@options.as_json
@click.pass_context
def check_move(
    context: click.Context, command: tuple[str, ...], rtol: float, known_file: str | None, as_json: bool
) -> None:
    """Run tests with Flax and with Sonde in its place.

    COMMAND is run twice, the second time with imports of flax.nnx and flax.linen meaning Sonde. If it runs pytest, the
    outcomes of its tests, their times and what they print are compared; otherwise its exit code and what it prints.
    PACKAGE stands for `python -m pytest --pyargs PACKAGE`.
    """
    from sonde.cli.moved_tests import differences, known_tests, run, split_known

    known = known_tests(known_file) if known_file else []
    full = _command(command)
    with busy("with Flax") as say:
        flax = run(full, aliased=False)
        _check_flax(full, flax)
        say("with Sonde", 0.5)
        sonde = run(full, aliased=True)
    _check_sonde(full, sonde)
    unknown, gone = split_known(differences(flax, sonde, rtol=rtol), known, flax)
    if as_json:
        show_json({**_data(flax, sonde, unknown), "no_longer_differ": gone})
    else:
        show(*_text(flax, sonde, unknown, rtol))
        show(*(f"listed in {known_file}, but no longer differs: {test}" for test in gone))
    context.exit(FOUND if unknown or gone else FINE)


def _command(command: tuple[str, ...]) -> list[str]:
    if len(command) == 1 and shutil.which(command[0]) is None:
        name = command[0]
        if not name.isidentifier() or importlib.util.find_spec(name) is None:
            raise Unusable(f"{name!r} is neither a command nor an installed package")
        return [sys.executable, "-m", "pytest", "-q", "--pyargs", name]
    if shutil.which(command[0]) is None:
        raise Unusable(f"there is no command {command[0]!r}")
    return list(command)


def _check_flax(command: list[str], flax: Run) -> None:
    """Raises if there is nothing to compare with."""
    text = " ".join(command)
    if flax.tests is not None and not flax.tests:
        raise Unusable(f"`{text}` ran no test:\n{_end(flax.printed)}")
    passed = flax.code == 0 if flax.tests is None else any(t.outcome == "passed" for t in flax.tests.values())
    if not passed:
        raise Failed(f"`{text}` fails with Flax already, so there is nothing to compare:\n{_end(flax.printed)}")


def _check_sonde(command: list[str], sonde: Run) -> None:
    """Raises if the second run was the same as the first."""
    if sonde.asks is None and (sonde.code == 0 or sonde.tests):
        raise Unusable(
            f"`{' '.join(command)}` never imported Flax, so both runs were the same. If it starts another "
            "Python, that one needs Sonde, and must not be started with -I, -E or -S."
        )


def _end(printed: str) -> str:
    return "\n".join(printed.strip().splitlines()[-5:])


def _text(flax: Run, sonde: Run, unknown: list[Difference], rtol: float) -> list[str]:
    lines = []
    for difference in unknown[:_SHOWN]:
        lines += [f"{difference.test or 'the command'}: {difference.kind}"]
        lines += [f"  Flax:  {difference.flax}", f"  Sonde: {difference.sonde}"]
    if len(unknown) > _SHOWN:
        lines.append(f"... and {len(unknown) - _SHOWN} more; --json lists all")
    for answer, meaning in (("missing", "asked for, and missing in Sonde"), ("set", "set, which Sonde does not see")):
        names = sorted(ask["name"] for ask in sonde.asks or () if ask["answer"] == answer)
        if names:
            lines.append(f"{meaning}: {', '.join(names)}")
    lines.append(_looked_at(flax, sonde, len(unknown), rtol))
    lines.append(f"time: {flax.seconds:.1f} s with Flax, {sonde.seconds:.1f} s with Sonde")
    return lines


def _looked_at(flax: Run, sonde: Run, n_differences: int, rtol: float) -> str:
    differ = f"{n_differences} differ" if n_differences else "nothing differs"
    if flax.tests is None or sonde.tests is None:
        n_lines = len(flax.printed.splitlines())
        return f"compared: the exit code and {n_lines} printed lines, numbers within {rtol:g}; {differ}"
    both = [name for name in flax.tests if name in sonde.tests]
    passed = [n for n in both if flax.tests[n].outcome == sonde.tests[n].outcome == "passed"]
    failed = [n for n in both if flax.tests[n].outcome == sonde.tests[n].outcome == "failed"]
    printing = sum(bool(flax.tests[name].printed) for name in passed)
    return (
        f"compared: {len(both)} tests; {len(passed)} pass with both, {len(failed)} fail with both; {printing} of them "
        f"print, numbers within {rtol:g}; {differ}"
    )


def _data(flax: Run, sonde: Run, unknown: list[Difference]) -> dict[str, object]:
    return {
        "differences": [dataclasses.asdict(difference) for difference in unknown],
        "seconds": {"flax": flax.seconds, "sonde": sonde.seconds},
        "tests": {
            name: {"flax": test.seconds, "sonde": sonde.tests[name].seconds}
            for name, test in (flax.tests or {}).items()
            if sonde.tests is not None and name in sonde.tests
        },
        "asks": list(sonde.asks or ()),
    }
