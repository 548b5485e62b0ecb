"""`sonde run`: runs a script as it is, and says why a result of a jitted function turns NaN or Inf."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sonde.cli import options
from sonde.cli.exit_codes import FINE, FOUND, TEXT, Unusable
from sonde.cli.output import console, show_json

if TYPE_CHECKING:
    from sonde.cli.watched_script import Watch


@click.command("run", epilog=TEXT, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-m", "as_module", is_flag=True, help="SCRIPT is the name of a module, as in python -m.")
@click.option(
    "--every",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="After how many calls to look at their results. The arguments of so many calls are kept.",
)
@click.option("--report", "page", metavar="FILE", help="If something is found, write a page about the call.")
@click.option(
    "--bundle",
    metavar="FOLDER",
    default="sonde-bundle",
    show_default=True,
    help="If something is found, write the call here, for sonde replay; an empty name writes none.",
)
@click.option("--monitor", "monitor_file", metavar="FILE", help="Write statistics of sites to a file of JSON lines.")
@options.together(options.inside, options.as_json)
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def run(
    context: click.Context,
    as_module: bool,
    every: int,
    page: str | None,
    bundle: str,
    monitor_file: str | None,
    inside: tuple[str, ...],
    as_json: bool,
    script: str,
    args: tuple[str, ...],
) -> None:
    """Run SCRIPT with its ARGS, unchanged, and watch its jitted functions, gradients, maps and loops.

    When a result of one turns NaN or Inf, or the script raises because of one, the script stops, and the operation that
    made the value is named: the search runs on the very call. What the script was given or writes down itself, such as
    a best loss that starts as Inf, does not stop it. If nothing is found, output and exit code are those of the script.

    Looking costs one reduction per call. The arguments of calls that have not been looked at are kept in memory; for
    functions that donate their arguments these are copies, which costs their memory once more for each such call.

    The bundle holds the inputs of the call and the compiled program; `sonde replay` repeats it elsewhere. --monitor
    writes mean, std, norm and NaNs of the sites of every jitted function, every N calls: of marked values, and of the
    code that --inside names.
    """
    from sonde.cli.page_file import check_writable
    from sonde.cli.script import run_script

    if not as_module and not Path(script).is_file():
        raise Unusable(f"there is no file {script!r}: SCRIPT is a Python file, or with -m a module")
    for file in filter(None, (monitor_file, page)):
        check_writable(file)

    def make_watch() -> Watch:
        from sonde.cli.watched_script import Watch
        from sonde.tools.training.writers import json_lines

        return Watch(every, inside or None, None if monitor_file is None else json_lines(monitor_file))

    watch, error = run_script(script, args, is_module=as_module, make_watch=make_watch)
    if watch.found is not None:
        from sonde.cli.nonfinite import as_dict
        from sonde.report.plain_json import plain

        written = _write(watch, page, bundle, inside)

        if as_json:
            show_json(
                {"finite": False, "calls": watch.calls, "call": watch.place, "first": plain(as_dict(watch.found))}
                | written
            )
        else:
            first, _, further = str(watch.found).partition("\n")
            err = console(stderr=True)
            err.print(f"Not finite in {watch.place} (from 0):", soft_wrap=True)
            err.print(first, style="bold red", soft_wrap=True)
            err.print(further, soft_wrap=True)
            for kind, place in written.items():
                err.print(f"{kind}: {place}", soft_wrap=True)
        context.exit(FOUND)
    if as_json:
        show_json({"finite": not watch.unexplained, "calls": watch.calls, "first": None})
    for sentence in watch.unexplained:
        print(f"sonde: {sentence}", file=sys.stderr)
    if isinstance(error, SystemExit):
        raise error
    if error is not None:
        _print(error, script)
    if not watch.unexplained:
        for sentence in _what_was_looked_at(watch, raised=error is not None):
            print(f"sonde: {sentence}", file=sys.stderr)
    context.exit(FINE if error is None and not watch.unexplained else FOUND)


def _what_was_looked_at(watch: Watch, *, raised: bool) -> list[str]:
    """What to say where nothing was found, so that silence is not taken for more than it is."""
    sentences = []
    if raised and watch.failed is not None:
        sentences.append(f"{watch.failed[0]} raised this; it computed no NaN or Inf that explains it")
    elif raised:
        watched = f"{watch.calls} call{'s' * (watch.calls != 1)} of transformed functions and loops"
        sentences.append(f"no NaN or Inf was made in the {watched} before this; nothing else was looked at")
    elif not watch.calls:
        sentences.append("nothing was looked at: the script called no jitted function, gradient, map or loop of JAX")
    if watch.nans_at_end:
        names = ", ".join(watch.nans_at_end)
        sentences.append(
            f"NaN at the end of the script in {names}, made outside of what is watched (jitted functions, gradients, "
            "maps, loops): put the code into a function f and call sonde.first_nonfinite(f)(...)"
        )
    return sentences


def _write(watch: Watch, page: str | None, bundle: str, inside: tuple[str, ...]) -> dict[str, str]:
    """Writes the page and the bundle of the call in which something was found; returns where they are, by kind."""
    from sonde.cli.page_file import write_page
    from sonde.report import examine
    from sonde.tools.training.bundle import write_bundle

    written: dict[str, str] = {}
    call = watch.found_in
    if call is None:
        return written
    if bundle:
        try:
            folder = write_bundle(bundle, call.f, call.args, call.kwargs, answer=str(watch.found))
            written["bundle"] = str(folder)
        except OSError as error:
            written["no bundle"] = str(error)
    if page is not None:
        report = examine(call.f, grads=True, inside=inside or None, title=str(call))(*call.args, **call.kwargs)
        write_page(report, Path(page))
        written["page"] = page
    return written


def _print(error: BaseException, script: str) -> None:
    """Prints the traceback of a script as `python` does, without the frames that run it."""
    from sonde.cli import script as runner
    from sonde.cli import watched_script

    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename not in (script, str(Path(script).resolve())):
        frame = frame.tb_next
    shown = traceback.TracebackException(type(error), error, frame or error.__traceback__)
    own = [entry for entry in shown.stack if entry.filename not in (watched_script.__file__, runner.__file__)]
    shown.stack = traceback.StackSummary.from_list(own)
    print("".join(shown.format()), end="", file=sys.stderr)
