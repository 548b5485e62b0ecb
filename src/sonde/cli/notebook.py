"""`%%sonde` in IPython and notebooks: runs a cell as `sonde run` runs a script."""

from __future__ import annotations

import argparse
import contextlib
import shlex
from typing import TYPE_CHECKING, Any

from sonde.cli.watched_script import Stopped, Watch, watching, watching_names

if TYPE_CHECKING:
    from sonde import NonFinite


def load(shell: Any) -> None:
    """Registers the magic; called by `%load_ext sonde`."""
    shell.register_magic_function(lambda line, cell: run_cell(shell, line, cell), "cell", "sonde")


def run_cell(shell: Any, line: str, cell: str) -> NonFinite | None:
    """Runs a cell with its jitted functions watched, also those that earlier cells have made.

    Args:
        shell: The shell of IPython.
        line: Options: `--every N` and `--inside NAME`, as of `sonde run`.
        cell: The code.

    Returns:
        What made a result NaN or Inf, which the notebook shows; None if nothing did.
    """
    parser = argparse.ArgumentParser(prog="%%sonde", add_help=False, exit_on_error=False)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--inside", action="append")
    options = parser.parse_args(shlex.split(line))
    watch = Watch(options.every, options.inside)
    shown = shell.custom_exceptions, shell.CustomTB
    shell.set_custom_exc((Stopped,), lambda *_, **__: None)  # the answer is shown in place of a traceback
    try:
        with watching_names(shell.user_ns, watch), watching(watch):
            outcome = shell.run_cell(cell)
            error = outcome.error_in_exec
            if error is None:
                with contextlib.suppress(Stopped):
                    watch.look()
            elif not isinstance(error, Stopped):
                watch.explain_failure(error)
    finally:
        watch.end()
        shell.custom_exceptions, shell.CustomTB = shown
    return watch.found
