"""Drawing for the examples: a progress bar that shows the loss, and arrays as colored cells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

# From dark to light, so that it is readable in print and for color-blind people.
SHADES = ["#0d0887", "#5302a3", "#8b0aa5", "#b83289", "#db5c68", "#f48849", "#febd2a", "#f0f921"]
BLOCKS = " ·:-=+*#"  # where there is no color, as in a log file


def heat_map(values: Iterable[Iterable[float]], console: Console, low: float = 0.0, high: float | None = None) -> Text:
    """A matrix, one line per row and two characters per number; the largest number is the lightest."""
    array = np.asarray(values, np.float32)
    high = float(array.max()) if high is None else high
    levels = np.clip((array - low) / max(high - low, 1e-12) * len(SHADES), 0, len(SHADES) - 1).astype(int)
    text = Text()
    for i, row in enumerate(levels):
        if i:
            text.append("\n")
        for level in row:
            if console.color_system is None:
                text.append(BLOCKS[level] * 2)
            else:
                text.append("  ", style=f"on {SHADES[level]}")
    return text


def training(console: Console, steps: int, every: int = 10) -> Iterator[tuple[int, list[float]]]:
    """Yields step numbers and shows a progress bar. The caller appends losses to the list; the last one is shown.

    Reading a loss waits for the device, so it is read only now and then.
    """
    columns = TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("loss {task.fields[loss]}")
    losses: list[float] = []
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("training", total=steps, loss="")
        for step in range(steps):
            yield step, losses
            if losses and (step % every == 0 or step == steps - 1):
                progress.update(task, completed=step + 1, loss=f"{float(losses[-1]):.4f}")
