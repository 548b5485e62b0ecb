"""`sonde store repair`: compute the damaged rows of a store again."""

from __future__ import annotations

import click

import sonde
from sonde.cli import options
from sonde.cli.exit_codes import TEXT
from sonde.cli.harvest import running_on_batches
from sonde.cli.output import quiet_stdout, show, show_json
from sonde.cli.store import damage_as_json


@click.command("repair", epilog=TEXT)
@click.argument("target")
@click.argument("folder")
@options.together(options.sites, options.grads, options.inside)
@click.option("--dtype", help="As in the harvest.")
@options.together(options.as_json, options.show_traceback)
def repair(
    target: str,
    folder: str,
    patterns: tuple[str, ...],
    grads: bool,
    inside: tuple[str, ...],
    dtype: str | None,
    as_json: bool,
    show_traceback: bool,
) -> None:
    """Compute the damaged rows of the store in FOLDER again.

    TARGET and the options are those of the sonde harvest that made the store. Only batches with damaged rows are
    computed, and rows are written only if they are what was written before.
    """
    with quiet_stdout(as_json), running_on_batches(target, inside, show_traceback) as (f, batches, more):
        repaired = sonde.store.repair(f, batches, folder, *patterns, dtype=dtype, grads=grads, **more)
    if as_json:
        show_json({"repaired": damage_as_json(repaired)})
    else:
        show(*([f"{len(repaired)} repaired:", *map(str, repaired)] if repaired else ["Nothing was damaged."]))
