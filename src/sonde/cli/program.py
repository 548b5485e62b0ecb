"""The command `sonde` itself: its help and its list of commands."""

from __future__ import annotations

from typing import Any

import click

from sonde._extras import MissingExtra
from sonde._version import __version__
from sonde.cli.check_move import check_move
from sonde.cli.compare import compare
from sonde.cli.demo import demo
from sonde.cli.exit_codes import TEXT, Unusable
from sonde.cli.explain import explain
from sonde.cli.harvest import harvest
from sonde.cli.mcp import mcp
from sonde.cli.nonfinite import nonfinite
from sonde.cli.port import port
from sonde.cli.repair import repair
from sonde.cli.replay import replay
from sonde.cli.report import report
from sonde.cli.run import run
from sonde.cli.sites import sites
from sonde.cli.store import store_commands
from sonde.cli.summarize import summarize
from sonde.cli.trace_back import trace_back
from sonde.cli.view import view

HELP = """See inside a JAX program.

\b
A TARGET is module:name or path/to/file.py:name. The name may refer to
  - a function that needs no arguments and returns (f, args) or (f, args, kwargs)
  - a tuple of that form
  - a function or model; its arguments come from
      --args EXPRESSION Python, as in --args 'jnp.ones((4, 3)), 0.1'
      --input FILE      an .npz file: arrays named like the parameters, or arg0, arg1, ...
      example_inputs    an attribute of the function, or a name in its module:
                        a tuple of arguments, a dict of keyword arguments, one argument,
                        or a function that returns one of these
Modules are also imported from the current directory. For example

\b
  sonde sites model.py:make_program
  sonde report model.py:loss --inside model.py:loss --args 'jnp.ones((4, 3))'
"""


class _Commands(click.Group):
    """The commands. A package that one of them needs and that is not installed is one line, not a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except MissingExtra as error:
            raise Unusable(str(error)) from error


@click.group("sonde", cls=_Commands, help=HELP, epilog=TEXT, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="sonde %(version)s")
@click.option("--quiet", is_flag=True, help="Keep stdout for the results: what the program prints goes to stderr.")
def sonde_command(quiet: bool) -> None:
    """See `HELP`."""


_COMMANDS = (
    view,
    run,
    replay,
    report,
    sites,
    summarize,
    nonfinite,
    trace_back,
    compare,
    port,
    harvest,
    store_commands,
    explain,
    check_move,
)
_COMMANDS += (mcp, demo)
for command in _COMMANDS:
    sonde_command.add_command(command)
store_commands.add_command(repair)
