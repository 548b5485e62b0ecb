"""How a command ends: the exit codes, and the two errors that are shown without a traceback."""

from __future__ import annotations

import click

from sonde.errors import SondeError

FINE, FOUND, UNUSABLE, FAILED = 0, 1, 2, 3

TEXT = """\b
Exit codes:
  0  nothing was found
  1  something was found: a finding, a value that is not finite, a difference
  2  the command, the target, its inputs or a pattern cannot be used
  3  the program failed inside
"""


class _Shown(click.ClickException):
    """An error shown without a traceback, with a link to the page about the error of Sonde behind it."""

    def format_message(self) -> str:
        """The text that click prints after "Error: "."""
        return f"{self.message}\n{self.__cause__.advice}" if isinstance(self.__cause__, SondeError) else self.message


class Unusable(_Shown):
    """Something in the command cannot be used: a target, an input file, a pattern, a path to write to."""

    exit_code = UNUSABLE


class Failed(_Shown):
    """The user's program failed."""

    exit_code = FAILED
