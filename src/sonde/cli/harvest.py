"""`sonde harvest`: run a program on many batches and store the values at its sites."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
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
    with quiet_stdout(as_json), running_on_batches(target, inside, show_traceback) as (f, batches, more):
        written = sonde.store.harvest(
            f, batches, folder, *patterns, dtype=dtype, grads=grads, memory=memory << 20, **more
        )
    if as_json:
        show_json(contents_as_json(written))
    else:
        show(written)


BatchTarget = tuple[Callable[..., Any], Any, dict[str, Any]]


@contextlib.contextmanager
def running_on_batches(target: str, inside: tuple[str, ...], show_traceback: bool) -> Iterator[BatchTarget]:
    """The function, the batches and the options of a target, for code that runs the function.

    Errors of the function are reported as the user's, errors of the store without a traceback.
    """
    from sonde.cli.target import Target
    from sonde.cli.user_program import running

    f, batches, store_options = _batch_target(target)
    if inside:
        store_options["inside"] = inside
    try:
        with running(Target(target, f, (), {}), show_traceback=show_traceback, usable=(StoreError, TypeError)):
            yield f, batches, store_options
    except (StoreError, TypeError) as error:
        raise Unusable(str(error)) from error


def _batch_target(target: str) -> BatchTarget:
    from sonde.cli.target import object_at

    value = object_at(target)
    if callable(value) and not isinstance(value, tuple):
        if inspect.signature(value).parameters:
            raise Unusable(f"{target} takes arguments; sonde harvest needs one without, that returns (f, batches)")
        value = value()
    if not isinstance(value, tuple) or len(value) not in (2, 3) or not callable(value[0]):
        raise Unusable(f"{target} is a {type(value).__name__}; sonde harvest needs (f, batches)")
    return value[0], value[1], dict(value[2]) if len(value) == 3 else {}
