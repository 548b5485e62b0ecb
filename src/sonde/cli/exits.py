"""How a command ends: the exit codes, and the two errors that are shown without a traceback."""

from __future__ import annotations

import click

FINE, FOUND, UNUSABLE, FAILED = 0, 1, 2, 3

TEXT = """\b
Exit codes:
  0  nothing was found
  1  something was found: a finding, a value that is not finite, a difference
  2  the command, the target, its inputs or a pattern cannot be used
  3  the program failed inside
"""


class Unusable(click.ClickException):
    """What was asked for cannot be done: a target, an input file, a pattern, a path to write to."""

    exit_code = UNUSABLE


class Failed(click.ClickException):
    """The program that was looked at failed."""

    exit_code = FAILED
