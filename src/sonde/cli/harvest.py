"""`sonde harvest`: run a program on many batches and store the values at its sites."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import click

import sonde
from sonde.cli import options
from sonde.cli.exit_codes import TEXT, Unusable
from sonde.cli.output import quiet_stdout, show, show_json
from sonde.cli.store import contents_as_json
from sonde.errors import StoreError


@click.command("harvest", epilog=TEXT)
@click.argument("target")
@click.argument("folder")
@options.together(options.sites, options.grads, options.inside)
@click.option("--dtype", help="Dtype to store floating-point numbers in, such as float16; unchanged by default.")
@click.option("--memory", type=int, default=1024, show_default=True, help="MiB of buffer before the disk.")
@options.together(options.as_json, options.show_traceback)
def harvest(
    target: str,
    folder: str,
    patterns: tuple[str, ...],
    grads: bool,
    inside: tuple[str, ...],
    dtype: str | None,
    memory: int,
    as_json: bool,
    show_traceback: bool,
) -> None:
    """Run TARGET on its batches and store the values at its sites in FOLDER.

    TARGET is module:name or file.py:name of a function without arguments that returns (f, batches) or (f, batches,
    options): each batch is a tuple of arguments of f, or one argument; options is a dict with keep, keys, reduce or
    inside, as sonde.store.harvest takes them. The same command on the same FOLDER continues where it was interrupted.
    """
    from sonde.cli.target import Target
    from sonde.cli.user_program import running

    with quiet_stdout(as_json):
        f, batches, more = taken_apart(target)
        if inside:
            more["inside"] = inside
        try:
            with running(Target(target, f, (), {}), show_traceback=show_traceback, usable=(StoreError, TypeError)):
                kept = sonde.store.harvest(
                    f, batches, folder, *patterns, dtype=dtype, grads=grads, memory=memory << 20, **more
                )
        except (StoreError, TypeError) as error:
            raise Unusable(str(error)) from error
    if as_json:
        show_json(contents_as_json(kept))
    else:
        show(kept)


def taken_apart(target: str) -> tuple[Callable[..., Any], Any, dict[str, Any]]:
    """The function, the batches and the options that a target gives."""
    from sonde.cli.target import object_at

    found = object_at(target)
    if callable(found) and not isinstance(found, tuple):
        if inspect.signature(found).parameters:
            raise Unusable(f"{target} takes arguments; sonde harvest needs one without, that returns (f, batches)")
        found = found()
    if not isinstance(found, tuple) or len(found) not in (2, 3) or not callable(found[0]):
        raise Unusable(f"{target} is a {type(found).__name__}; sonde harvest needs (f, batches)")
    return found[0], found[1], dict(found[2]) if len(found) == 3 else {}
