"""`sonde store`: list, verify, repair and merge stores."""

from __future__ import annotations

from typing import Any

import click

import sonde
from sonde.cli import options
from sonde.cli.exit_codes import FINE, FOUND, TEXT, Unusable
from sonde.cli.output import busy, show, show_json
from sonde.errors import StoreError


@click.group("store", epilog=TEXT)
def store_commands() -> None:
    """List, verify, repair and merge stores of activations."""


@store_commands.command("ls", epilog=TEXT)
@click.argument("folder")
@options.as_json
def ls(folder: str, as_json: bool) -> None:
    """List the arrays of the store in FOLDER."""
    try:
        stored = sonde.store.open(folder)
    except StoreError as error:
        raise Unusable(str(error)) from error
    if as_json:
        show_json(contents_as_json(stored))
    else:
        show(stored)


@store_commands.command("check", epilog=TEXT)
@click.argument("folder")
@options.as_json
def check(folder: str, as_json: bool) -> int:
    """Read everything that the store in FOLDER lists, and verify checksums."""
    try:
        with busy("reading the store"):
            damage = sonde.store.check(folder)
    except StoreError as error:
        raise Unusable(str(error)) from error
    if as_json:
        show_json({"whole": not damage, "damage": damage_as_json(damage)})
    else:
        show(*([f"{len(damage)} damaged:", *map(str, damage)] if damage else ["Nothing is damaged."]))
    return _end(FOUND if damage else FINE)


@store_commands.command("merge", epilog=TEXT)
@click.argument("folders", nargs=-1, required=True)
@click.argument("into")
@options.as_json
def merge(folders: tuple[str, ...], into: str, as_json: bool) -> None:
    """Concatenate the rows of the stores in FOLDERS into a new store INTO."""
    try:
        with busy("copying"):
            made = sonde.store.merge(folders, into)
    except StoreError as error:
        raise Unusable(str(error)) from error
    if as_json:
        show_json(contents_as_json(made))
    else:
        show(made)


def damage_as_json(damages: list[sonde.store.Damage]) -> list[dict[str, Any]]:
    """What is damaged, for JSON."""
    return [{"array": d.name, "rows": list(d.rows), "reason": d.reason} for d in damages]


def contents_as_json(stored: sonde.store.Store) -> dict[str, Any]:
    """The contents of a store, for JSON."""
    arrays = [
        {"kind": a.kind, "path": a.path, "shape": list(a.shape), "dtype": a.dtype.name, "bytes": a.nbytes}
        for a in stored.arrays
    ]
    return {"folder": stored.folder, "batches": stored.n_batches, "finished": stored.finished, "arrays": arrays}


def _end(code: int) -> int:
    if code:
        click.get_current_context().exit(code)
    return code
