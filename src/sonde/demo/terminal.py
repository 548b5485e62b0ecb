"""The story in a terminal: what was found, the attention of the head, the sweep. In color where there is color."""

from __future__ import annotations

import numpy as np
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sonde.demo.locating import ALLOWED, NEEDED, percent
from sonde.demo.page import letters
from sonde.demo.sequences import HALF
from sonde.demo.story import Story

# From dark to light, so that it is readable in print and for color-blind people.
_COLOURS = ["#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#fde725"]
_SHADES = " ·░░▒▒▓█"


class Pattern:
    """Numbers from 0 to 1 as cells, with a letter for every row and column."""

    def __init__(self, values: np.ndarray, rows: list[str], columns: list[str]) -> None:
        self._values, self._rows, self._columns = values, rows, columns

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        levels = np.clip(np.nan_to_num(self._values) * len(_COLOURS), 0, len(_COLOURS) - 1).astype(int)
        yield Text("    " + "".join(f"{c} " for c in self._columns), style="dim")
        for label, row in zip(self._rows, levels):
            line = Text.assemble((f"  {label} ", "dim"))
            for level in row:
                if console.color_system is None:
                    line.append(_SHADES[level] * 2)
                else:
                    line.append("  ", style=f"on {_COLOURS[level]}")
            yield line


def show(story: Story) -> Group:
    """The story as something that rich can print."""
    located = story.located
    labels = letters(located.tokens)
    parts = [
        Text(f"{len(story.trained.losses)} steps, loss {story.trained.losses[-1]:.3f} nats", style="dim"),
        Text(),
        Text(f"Where {located.head} looks, from the second half of a sequence that repeats:", style="bold"),
        Pattern(located.weights[HALF:-1], labels[HALF:-1], labels),
        Text(),
        Text(
            f"First half exchanged: the logit of the right token falls from {float(located.sweep.clean):.1f} to "
            f"{float(located.sweep.corrupt):.1f}. What each head alone brings back:",
            style="bold",
        ),
        _heads(story),
        Text(),
        Text(f"The planted defect: a training step has the loss {story.search.loss}. first_nonfinite says", "bold"),
        _indented(str(story.search.found or "that every value and every gradient is finite")),
        Text(),
        Text("Findings", style="bold"),
    ]
    parts += [_point("•", sentence, "green") for sentence in story.findings]
    parts += [_point("✗", f"Not shown with this seed: {problem}.", "red") for problem in story.problems]
    return Group(*parts)


def _indented(text: str) -> Padding:
    return Padding(Text(text), (0, 0, 0, 2), expand=False)


def _point(mark: str, text: str, style: str) -> Table:
    """A sentence whose lines are aligned."""
    point = Table.grid(padding=(0, 1))
    point.add_row(Text(f"  {mark}", style=style), Text(text))
    return point


def _heads(story: Story) -> Table:
    located = story.located
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("  head")
    table.add_column("restored", justify="right")
    table.add_column("looks there", justify="right")
    table.add_column("")
    for path, share in located.restored.items():
        style = "bold green" if share > NEEDED else "yellow" if share >= ALLOWED else ""
        bar = "█" * round(20 * min(max(share, 0.0), 1.0))
        table.add_row(f"  {path}", percent(share), percent(located.looks[path]), bar, style=style)
    return table
