"""Runs the user's program, and reports its exceptions without our frames."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator

import click

from sonde._extras import MissingExtra
from sonde.cli.exit_codes import Failed, Unusable
from sonde.cli.target import Target, last_line
from sonde.errors import CaptureError, InsideError, NoSuchSiteError

NO_SITES = (
    "{target} has no sites: there is nothing to look at. Look into code as it is with --inside, such as "
    "--inside {inside} or --inside PACKAGE; or mark values with sonde.sow(value, name)."
)


def no_sites(target: str) -> Unusable:
    """The error for a program without sites, with what to try."""
    return Unusable(NO_SITES.format(target=target, inside=target.rpartition(":")[0]))


@contextlib.contextmanager
def running(
    program: Target, *, show_traceback: bool, usable: tuple[type[Exception], ...] = (), reports: bool = False
) -> Iterator[None]:
    """Turns exceptions of the user's program into an exit code and a message.

    Args:
        program: The program.
        show_traceback: Whether to print the traceback.
        usable: Errors that are passed on.
        reports: Whether this is `sonde report`, which has nothing more to show after a failure.
    """
    try:
        yield
    except (KeyboardInterrupt, click.ClickException, MissingExtra, *usable):
        raise
    except (NoSuchSiteError, InsideError) as error:
        # On the command line a function is named with its file.
        where = program.name.rpartition(":")[0]
        advice = f"; name a function of a file as --inside {where}:FUNCTION" if isinstance(error, InsideError) else ""
        raise Unusable(f"{program.name}: {error}{advice}") from error
    except CaptureError as error:
        raise Failed(f"{program.name} cannot be captured: {error}") from error
    except BaseException as error:
        if show_traceback:
            traceback.print_exception(error)
        advice = [] if reports else [f"`sonde report {program.name}` shows the values up to the failure"]
        advice += [] if show_traceback else ["--traceback shows where"]
        more = f"\n{'; '.join(advice)}." if advice else ""
        raise Failed(f"{program.name} failed:\n  {last_line(error)}{more}") from error
