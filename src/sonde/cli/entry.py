"""The entry point of the installed script; without click, it says that click is missing."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

INTERRUPTED = 130  # what shells use for a program ended by Ctrl-C
MISSING = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        arguments: The arguments after `sonde`; `sys.argv` by default.

    Returns:
        The exit code; `sonde --help` lists them.
    """
    try:
        import click
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        print("The command line of Sonde needs click: pip install 'sonde-jax[cli]'", file=sys.stderr)
        return MISSING

    from sonde.cli.program import sonde_command

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a character that the terminal cannot show becomes a question mark
    try:
        return sonde_command.main(arguments, prog_name="sonde", standalone_mode=False) or 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        print("Interrupted.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader, such as `head`, has closed the pipe. Nothing may be flushed into it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
