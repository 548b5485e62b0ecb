"""`sonde replay`: repeats a call that `sonde run` or `monitor` has written into a bundle."""

from __future__ import annotations

from pathlib import Path

import click

from sonde.cli import options
from sonde.cli.exit_codes import FINE, FOUND, TEXT, Failed, Unusable
from sonde.cli.output import show, show_json
from sonde.errors import StoreError


@click.command("replay", epilog=TEXT)
@click.argument("bundle", type=click.Path(path_type=Path))
@options.together(options.as_json)
@click.pass_context
def replay(context: click.Context, bundle: Path, as_json: bool) -> None:
    """Repeat the call in the folder BUNDLE, and say which of its results are not finite.

    The bundle holds the inputs and the compiled program; the code it came from is not needed. Exit code 1 means that a
    result is not finite again.
    """
    from rich.text import Text

    from sonde.tools.training.bundle import read_bundle

    try:
        call = read_bundle(bundle)
    except StoreError as error:
        raise Unusable(str(error)) from error
    try:
        outcome = call.replay()
    except StoreError as error:
        raise Failed(f"{error}\n{call.answer}".strip()) from error
    except Exception as error:
        raise Failed(f"{call.name} raised: {type(error).__name__}: {error}\n{call.answer}".strip()) from error
    if as_json:
        show_json(
            {
                "name": call.name,
                "versions": dict(call.versions),
                "not_finite": list(outcome.not_finite),
                "repeated": outcome.is_repeated,
                "answer": call.answer,
            }
        )
    else:
        written = ", ".join(f"{name} {version}" for name, version in call.versions.items())
        show(Text(f"{call.name}, written with {written}", style="bold"), Text(str(outcome)))
        if call.answer:
            show(Text(f"\nWhat was found then:\n{call.answer}"))
    context.exit(FOUND if outcome.not_finite else FINE)
