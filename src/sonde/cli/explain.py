"""`sonde explain`: show the page about an error."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path

import click

from sonde import errors
from sonde.cli.exit_codes import Unusable
from sonde.cli.output import console

# The pages are in the wheel, and in a checkout where they are written.
_FOLDERS = (Path(__file__).with_name("pages"), Path(__file__).parents[3] / "docs" / "errors")
EXITS = """\b
Exit codes:
  0  the page was shown
  2  there is no such error
"""


@click.command("explain", epilog=EXITS)
@click.argument("name", required=False)
def explain(name: str | None) -> None:
    """Show the page about the error NAME: its cause and what to do.

    Without NAME, lists the errors of Sonde.
    """
    if name is None:
        for kind in _kinds().values():
            if errors.SondeError in kind.__bases__:
                click.echo(f"{kind.__name__:20} {(kind.__doc__ or '').splitlines()[0]}")
        return
    kind = _kind_named(name)
    text = page_of(kind)
    if sys.stdout.isatty():
        from rich.markdown import Markdown

        console().print(Markdown(text))
    else:
        click.echo(text, nl=False)


def page_of(kind: type[errors.SondeError]) -> str:
    """The page about a class of errors."""
    file = Path(kind.page).name
    page = next((folder / file for folder in _FOLDERS if (folder / file).is_file()), None)
    if page is None:
        return f"# {kind.__name__}\n\n{kind.__doc__}\n\n{kind.todo}\n"
    return page.read_text(encoding="utf-8")


def _kinds() -> dict[str, type[errors.SondeError]]:
    classes = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type)}
    return {name: kind for name, kind in sorted(classes.items()) if kind is not errors.SondeError}


def _kind_named(name: str) -> type[errors.SondeError]:
    """The class of errors that a name means: `InsideError`, `inside`, `sonde.errors.InsideError`."""
    lowered = name.rpartition(".")[2].lower().removesuffix("error")
    names = {each.lower().removesuffix("error"): kind for each, kind in _kinds().items()}
    if lowered in names:
        return names[lowered]
    near = difflib.get_close_matches(lowered, names, n=3, cutoff=0.6)
    listed = ", ".join(names[n].__name__ for n in near)
    more = f" Nearest: {listed}." if near else ""
    raise Unusable(f"Sonde has no error {name!r}.{more} `sonde explain` lists all.")
