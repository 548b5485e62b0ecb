"""`sonde nonfinite`: finds the site that makes the first NaN or Inf."""

from __future__ import annotations

import dataclasses

import click

from sonde.cli import options
from sonde.cli.exits import FINE, FOUND, TEXT
from sonde.cli.output import busy, quiet_stdout, show, show_json


@click.command("nonfinite", epilog=TEXT)
@options.together(options.target, options.input_file, options.inside)
@click.option(
    "--context",
    "before",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    help="How many earlier values to show the ranges of.",
)
@options.together(options.as_json, options.show_traceback)
@click.pass_context
def nonfinite(
    context: click.Context,
    target: str,
    input_file: str | None,
    inside: tuple[str, ...],
    before: int,
    as_json: bool,
    show_traceback: bool,
) -> None:
    """Find the first NaN or Inf in TARGET.

    Runs the program once and checks every value and gradient, in program order: forward before backward, and loops
    iteration by iteration.

    TARGET is module:name or file.py:name; `sonde --help` explains what the name may be.
    """
    from rich.text import Text

    import sonde
    from sonde.cli.inputs import read_arrays
    from sonde.cli.running import check_has_sites, running
    from sonde.cli.target import program_at
    from sonde.report.plain import plain

    asked = inside or None
    with quiet_stdout(as_json):
        program = program_at(target, read_arrays(input_file) if input_file else None)
        with running(program, show_traceback=show_traceback), busy("running the program"):
            found = sonde.first_nonfinite(program.f, context=before, inside=asked)(*program.args, **program.kwargs)
            # Finding nothing means something only if there are sites.
            watched = check_has_sites(program, asked) if found is None else None
    if as_json:
        show_json({"finite": found is None, "first": None if found is None else plain(dataclasses.asdict(found))})
    elif found is None:
        where = "" if watched is None else f" at {watched} site{'s' * (watched != 1)}"
        show(Text(f"Every value and every gradient{where} is finite.", style="green"))
    else:
        first, _, rest = str(found).partition("\n")
        show(Text(f"{first[0].upper()}{first[1:]}", style="bold red"), Text(rest))
    context.exit(FINE if found is None else FOUND)
