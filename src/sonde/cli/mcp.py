"""`sonde mcp`: a Model Context Protocol server, with which a coding agent looks inside the JAX programs of a project.

Each tool of the server is a command of this command line, run in a process of its own: the user's code can neither end
the server nor write into the protocol, and what it imported is forgotten before the next call. The server itself does
not import JAX.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from sonde.cli.exit_codes import Unusable

EXITS = """\b
Exit codes:
  0  the client closed the connection
  2  the command cannot be used
"""


HELP = """Serve sites, report, summarize, nonfinite, trace_back, compare, run and explain to a coding agent.

Speaks the Model Context Protocol on stdin and stdout. Put this into the settings of the agent:

\b
  {"mcpServers": {"sonde": {"command": "sonde",
                            "args": ["mcp", "--folder", "path/to/project"]}}}

Programs run with your rights and are not sandboxed: the limits end what runs too long or grows too large.
"""


@click.command("mcp", help=HELP, epilog=EXITS)
@click.option(
    "--folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    show_default=True,
    help="Where programs run: targets and files are relative to it.",
)
@click.option(
    "--python",
    default=sys.executable,
    help="The Python that runs the programs, with Sonde installed; by default the one of this command.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=300,
    show_default=True,
    help="A program that runs longer is ended.",
)
@click.option(
    "--gigabytes",
    type=click.FloatRange(min=0, min_open=True),
    help="A program that uses more memory is ended (on Linux); no limit by default.",
)
def mcp(folder: Path, python: str, seconds: float, gigabytes: float | None) -> None:
    """See `HELP`."""
    import shutil

    from sonde.cli.limited_process import Limits
    from sonde.cli.mcp_server import serve

    if shutil.which(python) is None:
        raise Unusable(f"--python {python!r} is not a program that can be run")
    serve(folder.resolve(), python, Limits(seconds, gigabytes))
