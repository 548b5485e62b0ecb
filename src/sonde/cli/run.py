"""`sonde run`: runs a script as it is, and says why a result of a jitted function turns NaN or Inf."""

from __future__ import annotations

import traceback
from pathlib import Path

import click

from sonde.cli import options
from sonde.cli.exit_codes import FINE, FOUND, TEXT, Unusable
from sonde.cli.output import console, show_json


@click.command("run", epilog=TEXT, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-m", "as_module", is_flag=True, help="SCRIPT is the name of a module, as in python -m.")
@click.option(
    "--every",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="After how many calls to look at their results. The arguments of so many calls are kept.",
)
@options.together(options.inside, options.as_json)
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def run(
    context: click.Context,
    as_module: bool,
    every: int,
    inside: tuple[str, ...],
    as_json: bool,
    script: str,
    args: tuple[str, ...],
) -> None:
    """Run SCRIPT with its ARGS, unchanged, and watch its jitted functions.

    When a result of one turns NaN or Inf, or the script raises because of one, the script stops, and the operation that
    made the value is named: the search runs on the very call. What the script was given or writes down itself, such as
    a best loss that starts as Inf, does not stop it. If nothing is found, output and exit code are those of the script.

    Looking costs one reduction per call. The arguments of calls that have not been looked at are kept in memory; for
    functions that donate their arguments these are copies.
    """
    from sonde.cli.watched_script import Watch, run_script
    from sonde.report.plain_json import plain

    if not as_module and not Path(script).is_file():
        raise Unusable(f"there is no file {script!r}: SCRIPT is a Python file, or with -m a module")
    watch = Watch(every, inside or None)
    error = run_script(script, args, is_module=as_module, watch=watch)
    if watch.found is not None:
        from sonde.cli.nonfinite import as_dict

        if as_json:
            show_json(
                {"finite": False, "calls": watch.calls, "call": watch.place, "first": plain(as_dict(watch.found))}
            )
        else:
            first, _, others = str(watch.found).partition("\n")
            err = console(stderr=True)
            err.print(f"Not finite in {watch.place} (from 0):", soft_wrap=True)
            err.print(first, style="bold red", soft_wrap=True)
            err.print(others, soft_wrap=True)
        context.exit(FOUND)
    if as_json:
        show_json({"finite": True, "calls": watch.calls, "first": None})
    if isinstance(error, SystemExit):
        raise error
    if error is not None:
        _print(error, script)
        context.exit(FOUND)
    context.exit(FINE)


def _print(error: BaseException, script: str) -> None:
    """Prints the traceback of a script as `python` does, without the frames that run it."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename not in (script, str(Path(script).resolve())):
        frame = frame.tb_next
    traceback.print_exception(type(error), error, frame or error.__traceback__)
