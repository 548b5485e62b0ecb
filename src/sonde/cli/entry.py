"""Where the installed script begins: it works without click as far as saying that click is missing."""

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
        arguments: What was typed after `sonde`; `sys.argv` by default.

    Returns:
        The exit code; `sonde --help` lists them.
    """
    try:
        import click
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        print("The command line of Sonde needs click: pip install 'sonde[cli]'", file=sys.stderr)
        return MISSING

    from sonde.cli.program import sonde_command

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a letter shows a question mark
    try:
        return sonde_command.main(arguments, prog_name="sonde", standalone_mode=False) or 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        print("Interrupted.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader, say `head`, has seen enough. Nothing may be flushed into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
