"""`sonde summarize`: the statistics of every value and gradient of a program."""

from __future__ import annotations

import click

from sonde.cli import options
from sonde.cli.exit_codes import TEXT
from sonde.cli.output import busy, quiet_stdout, show, show_json


@click.command("summarize", epilog=TEXT)
@options.together(options.target, *options.inputs, options.grads, options.sites, options.inside)
@options.together(options.as_json, options.show_traceback)
def summarize(
    target: str,
    input_file: str | None,
    call_arguments: str | None,
    grads: bool,
    patterns: tuple[str, ...],
    inside: tuple[str, ...],
    as_json: bool,
    show_traceback: bool,
) -> None:
    """Show the statistics of every value of TARGET: range, mean, spread, zeros, dead units, NaN.

    TARGET is module:name or file.py:name; `sonde --help` explains what the name may be.
    """
    from sonde.cli.target import program_at
    from sonde.cli.user_program import no_sites, running

    with quiet_stdout(as_json):
        program = program_at(target, input_file, call_arguments)
        from sonde.report.plain_json import plain
        from sonde.tools import summarize as summarize_program

        with running(program, show_traceback=show_traceback), busy("running the program"):
            statistics = summarize_program(program.f, *patterns, grads=grads, inside=inside or None)
            rows = statistics(*program.args, **program.kwargs)
    if not len(rows):
        raise no_sites(target)
    if as_json:
        show_json({"rows": plain(rows.data)})
    else:
        show(rows)
