"""`sonde demo`: train a small model, find its induction head, find a planted defect, write the page."""

from __future__ import annotations

import click
from rich.text import Text

from sonde.cli import options
from sonde.cli.exits import FINE, FOUND
from sonde.cli.output import busy, show, show_json, show_page
from sonde.cli.writing import check_writable, write_page

PAGE = "sonde-demo.html"
EXITS = """\b
Exit codes:
  0  the induction head and the defect were found
  1  they were not, with this seed; the text says what is missing
  2  the command cannot be used as it was typed
"""


@click.command("demo", epilog=EXITS)
@click.option("--seed", type=int, default=0, show_default=True, help="Decides weights, data and the defect.")
@click.option("--out", metavar="FILE", default=PAGE, show_default=True, help="Where the page goes.")
@options.as_json
@click.pass_context
def demo(context: click.Context, seed: int, out: str, as_json: bool) -> None:
    """Train a small model and find what is inside it.

    A model of two attention layers learns to continue repeated random sequences. The head that does it is found by its
    attention and by patching; then an overflow is planted in one layer and searched for. Takes about half a minute.
    """
    from sonde import demo as story_of

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
        show_page(page)
    context.exit(FOUND if story.problems else FINE)
