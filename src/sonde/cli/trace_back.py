"""`sonde trace-back`: finds the operation that gave a result a property."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import click

from sonde.cli import options
from sonde.cli.exit_codes import FINE, FOUND, TEXT, Unusable
from sonde.cli.output import busy, quiet_stdout, show, show_json

_CONDITION = re.compile(r"(abs)?\s*(<=|>=|==|!=|<|>)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)", re.IGNORECASE)
_WORDS = {"zero": "== 0", "negative": "< 0", "positive": "> 0"}


@click.command("trace-back", epilog=TEXT)
@options.together(options.target, *options.inputs)
@click.option(
    "--where",
    "condition",
    required=True,
    metavar="CONDITION",
    help="What is asked of each number: '> 1e4', 'abs < 1e-8', '== 0', or zero, negative, positive.",
)
@options.together(options.inside, options.as_json, options.show_traceback)
@click.pass_context
def trace_back(
    context: click.Context,
    target: str,
    input_file: str | None,
    call_arguments: str | None,
    condition: str,
    inside: tuple[str, ...],
    as_json: bool,
    show_traceback: bool,
) -> None:
    """Find the operation that gave a result of TARGET a property: too large, zero, negative.

    Runs the program and walks back from the numbers of its results for which the condition holds to the operation that
    made the first such number. `sonde nonfinite` does so for NaN and Inf.

    TARGET is module:name or file.py:name; `sonde --help` explains what the name may be.
    """
    from rich.text import Text

    from sonde.cli.target import program_at
    from sonde.cli.user_program import running

    predicate = _predicate(condition)
    with quiet_stdout(as_json):
        program = program_at(target, input_file, call_arguments)
        from sonde.report.plain_json import plain
        from sonde.tools import trace_back as trace_program_back

        with running(program, show_traceback=show_traceback), busy("running the program"):
            search = trace_program_back(program.f, predicate, inside=inside or None)
            origin = search(*program.args, **program.kwargs)
    if as_json:
        show_json({"found": origin is not None, "origin": origin and plain(dataclasses.asdict(origin))})
    elif origin is None:
        show(Text(f"No number of the results is {condition}.", style="green"))
    else:
        show(origin)
    context.exit(FINE if origin is None else FOUND)


def _predicate(condition: str) -> Callable[[Any], Any]:
    """The function of an array that a condition means."""
    import operator

    parts = _CONDITION.fullmatch(_WORDS.get(condition.strip(), condition.strip()))
    if parts is None:
        raise Unusable(
            f"--where {condition!r} is not a condition: write '> 1e4', 'abs < 1e-8', '== 0', or one of "
            f"{', '.join(_WORDS)}. NaN and Inf are found by `sonde nonfinite`."
        )
    compare = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
    compare |= {"==": operator.eq, "!=": operator.ne}
    holds, number = compare[parts[2]], float(parts[3])
    return lambda x: holds(abs(x) if parts[1] else x, number)
