"""`sonde nonfinite`: finds the operation that makes the first NaN or Inf of the results."""

from __future__ import annotations

import dataclasses
import traceback
from typing import TYPE_CHECKING, Any

import click

from sonde.cli import options
from sonde.cli.exit_codes import FINE, FOUND, TEXT
from sonde.cli.output import busy, quiet_stdout, show, show_json

if TYPE_CHECKING:
    from sonde import NonFinite


@click.command("nonfinite", epilog=TEXT)
@options.together(options.target, *options.inputs, options.inside)
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
    call_arguments: str | None,
    inside: tuple[str, ...],
    before: int,
    as_json: bool,
    show_traceback: bool,
) -> None:
    """Find what makes a result of TARGET NaN or Inf.

    Runs the program and walks back from the results, gradients and updated arguments that are not finite to the
    operation that made the first such value. If the program raises because of one, it is explained too.

    TARGET is module:name or file.py:name; `sonde --help` explains what the name may be.
    """
    from rich.text import Text

    import sonde
    from sonde.cli.target import program_at
    from sonde.cli.user_program import running

    inside_names = inside or None
    with quiet_stdout(as_json):
        program = program_at(target, input_file, call_arguments)
        with running(program, show_traceback=show_traceback), busy("running the program"):
            first = sonde.first_nonfinite(program.f, context=before, inside=inside_names, discarded=True)(
                *program.args, **program.kwargs
            )
    finite = first is None or first.discarded
    if as_json:
        from sonde.report.plain_json import plain

        show_json({"finite": finite, "first": None if first is None else plain(as_dict(first))})
    elif first is None:
        show(Text("Every result of the program is finite.", style="green"))
    else:
        if first.discarded:
            show(Text("Every result of the program is finite. On the way a value was not:", style="green"))
        show(first)
    context.exit(FINE if finite else FOUND)


def as_dict(first: NonFinite) -> dict[str, Any]:
    """What was found, as data."""
    fields = {field.name: getattr(first, field.name) for field in dataclasses.fields(first)}
    fields["before"] = [dataclasses.asdict(r) for r in first.before]
    fields["error"] = None if first.error is None else "".join(traceback.format_exception_only(first.error)).strip()
    return fields
