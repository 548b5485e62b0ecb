"""Where a command writes: results to stdout, everything else to stderr; progress only on a terminal."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

WIDE = 160  # columns if there is no terminal: tables in files and pipes are not truncated

Say = Callable[[str, float], None]
"""Called with what is being done and how much of it is done, from 0 to 1."""


def console(*, stderr: bool = False) -> Console:
    """A console on the stream as it is now; in color on terminals, plain elsewhere."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    fixed = None if stream.isatty() or "COLUMNS" in os.environ else WIDE
    # Paths of sites may have brackets, which are not markup; numbers in them are not colored.
    return Console(stderr=stderr, width=fixed, markup=False, highlight=False)


def show(*things: Any) -> None:
    """Prints texts and tables on stdout."""
    console().print(*things, sep="\n")


def show_json(data: Any) -> None:
    """Prints data as JSON on stdout. Numbers that are not finite must be strings already."""
    click.echo(json.dumps(data, indent=2, allow_nan=False))


def hint(text: str) -> None:
    """Prints a line on stderr."""
    console(stderr=True).print(text, style="yellow", soft_wrap=True)


def show_page(page: Path) -> None:
    """Prints the path of a page on one line, so that it can be copied."""
    console().print(f"page: {page}", soft_wrap=True)


@contextlib.contextmanager
def busy(what: str) -> Iterator[Say]:
    """Shows progress on stderr; nothing if stderr is not a terminal."""
    err = console(stderr=True)
    if not err.is_terminal:
        yield lambda what, done: None
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=err, transient=True) as progress:
        task = progress.add_task(what, total=None)

        def say(what: str, done: float) -> None:
            # A complete task stops its clock, but there may be another phase after this one.
            progress.update(task, description=what, completed=min(done, 0.999), total=1.0 if done else None)

        yield say


@contextlib.contextmanager
def quiet_stdout(as_json: bool) -> Iterator[None]:
    """While the user's program runs, redirects its output to stderr if stdout is for JSON, or with `sonde --quiet`.

    This includes the output of child processes and C libraries, which do not use `sys.stdout`.
    """
    context = click.get_current_context(silent=True)
    if not as_json and (context is None or not context.find_root().params.get("quiet")):
        yield
        return
    sys.stdout.flush()
    try:
        stdout = os.dup(1)
    except OSError:  # closed, as in a service
        stdout = None
    try:
        if stdout is not None:
            os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        if stdout is not None:
            ctypes.CDLL(None).fflush(None)  # flush C's buffers to stderr
            os.dup2(stdout, 1)
            os.close(stdout)
