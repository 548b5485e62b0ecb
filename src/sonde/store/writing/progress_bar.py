"""The progress bar of a harvest: batches, vectors and bytes per second, time left.

A vector is one row along the last axis of a value: in a language model, the value of one token at a site.
"""

from __future__ import annotations

import math
import time
from types import TracebackType
from typing import Any

from sonde.store.writing.program import BatchOutcome


class ProgressBar:
    """Shows the progress of a harvest on a terminal; does nothing if stderr is not a terminal.

    Args:
        total: How many batches there are, if that is known.
        show: Whether to show anything.
    """

    def __init__(self, total: int | None, *, show: bool) -> None:
        self._progress: Any = None
        self._vectors = self._bytes = 0
        self._start = time.monotonic()
        if not show:
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        if console.is_terminal:
            columns = TextColumn("harvest"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}")
            self._progress = Progress(*columns, TimeRemainingColumn(), console=console)
            self._task = self._progress.add_task("harvest", total=total, rate="")

    def __enter__(self) -> ProgressBar:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._progress is not None:
            self._progress.stop()

    def skip(self) -> None:
        """Counts a batch that is in the store already."""
        if self._progress is not None:
            self._progress.advance(self._task)

    def advance(self, outcome: BatchOutcome) -> None:
        """Counts a batch that was computed."""
        if self._progress is None:
            return
        self._vectors += max((math.prod(array.shape[:-1]) for array in outcome.arrays), default=0)
        self._bytes += sum(array.nbytes for array in outcome.arrays)
        seconds = max(time.monotonic() - self._start, 1e-3)
        rate = f"{self._vectors / seconds:,.0f} vectors/s, {self._bytes / seconds / 1e6:,.1f} MB/s"
        self._progress.update(self._task, advance=1, rate=rate)
