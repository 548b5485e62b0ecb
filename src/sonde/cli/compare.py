"""`sonde compare`: finds where two programs that should do the same first differ."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from sonde.cli import options
from sonde.cli.exits import FINE, FOUND, TEXT, Unusable
from sonde.cli.inputs import read_arrays
from sonde.cli.output import busy, quiet_stdout, show, show_json
from sonde.cli.running import NO_SITES, running
from sonde.cli.target import Target, program_at
from sonde.report.plain import plain
from sonde.tools import Comparison
from sonde.tools import compare as compare_programs


@click.command("compare", epilog=TEXT)
@click.argument("first")
@click.argument("second")
@options.together(options.input_file, options.grads, options.sites, options.inside)
@click.option("--rtol", type=click.FloatRange(min=0), default=1e-4, show_default=True, help="Relative tolerance.")
@click.option("--atol", type=click.FloatRange(min=0), default=1e-6, show_default=True, help="Absolute tolerance.")
@options.together(options.as_json, options.show_traceback)
@click.pass_context
def compare(
    context: click.Context,
    first: str,
    second: str,
    input_file: str | None,
    grads: bool,
    patterns: tuple[str, ...],
    inside: tuple[str, ...],
    rtol: float,
    atol: float,
    as_json: bool,
    show_traceback: bool,
) -> None:
    """Find the first site at which FIRST and SECOND differ.

    Sites are matched by path and call. Each program runs with its own arguments; if SECOND has none, with those of
    FIRST. Sites that only one of them has are listed, but are not differences.

    Both are targets, module:name or file.py:name; `sonde --help` explains what the name may be.
    """
    asked = inside or None
    with quiet_stdout(as_json):
        arrays = read_arrays(input_file) if input_file else None
        one = program_at(first, arrays)
        other = program_at(second, arrays, instead=one)
        both = Target(f"{first} or {second}", one.f, (), {})
        with running(both, show_traceback=show_traceback), busy("running both programs"):
            found = compare_programs(
                _whole(one), _whole(other), *patterns, rtol=rtol, atol=atol, grads=grads, inside=asked
            )()
    _check_comparable(found, first, second)
    if as_json:
        show_json(_plain(found))
    else:
        show(found)
    context.exit(FINE if found.first is None else FOUND)


def _whole(program: Target) -> Any:
    """The program with its arguments bound: two programs may take different ones."""
    return lambda: program.f(*program.args, **program.kwargs)


def _check_comparable(found: Comparison, first: str, second: str) -> None:
    if found.drifts:
        return
    if not found.only_first and not found.only_second:
        raise Unusable(
            f"{first} and {second} have no arrays at any site: there is nothing to compare. Mark values with "
            "sonde.sow(value, name)."
        )
    for target, own in ((first, found.only_first), (second, found.only_second)):
        if not own:
            raise Unusable(NO_SITES.format(target=target))
    ours, theirs = (", ".join(dict.fromkeys(path for path, _ in x)) for x in (found.only_first, found.only_second))
    raise Unusable(f"{first} and {second} have no site in common. The first has {ours}; the second has {theirs}.")


def _plain(found: Comparison) -> dict[str, Any]:
    drifts = [plain(dataclasses.asdict(drift)) | {"differs": drift.differs} for drift in found.drifts]
    return {
        "same": found.first is None,
        "first": next((drift for drift in drifts if drift["differs"]), None),
        "drifts": drifts,
        "only_first": [{"path": path, "call": call} for path, call in found.only_first],
        "only_second": [{"path": path, "call": call} for path, call in found.only_second],
    }
