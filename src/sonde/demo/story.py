"""The whole demo: train, capture, patch, break, search. It reports only what the run has shown."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from sonde.demo.defect import Search, plant_and_search
from sonde.demo.locating import Located, locate, percent
from sonde.demo.training import FEWEST_STEPS, LEARNED, Trained, train
from sonde.report.plain_json import plain

Progress = Callable[[str, float], None]
"""Called with what is being done and how much of it is done, from 0 to 1."""


@dataclasses.dataclass(frozen=True)
class Story:
    """What one run of the demo found.

    Attributes:
        seed: The seed.
        trained: The model and how it was trained.
        located: The search for the induction head.
        search: The search for the planted defect.
        seconds: How long it all took.
    """

    seed: int
    trained: Trained
    located: Located
    search: Search
    seconds: float

    @property
    def problems(self) -> list[str]:
        """What the demo wanted to show and did not; empty if it showed everything."""
        problems = []
        if not self.trained.learned:
            problems.append(f"the loss did not fall below {LEARNED} nats in {len(self.trained.losses)} steps")
        problems += self.located.problems
        if not self.search.right:
            named = self.search.found.path if self.search.found else "nothing"
            problems.append(f"the defect is in {self.search.planted}, but first_nonfinite found {named}")
        return problems

    @property
    def findings(self) -> list[str]:
        """What was found, one sentence each; only what this run has shown."""
        located, search = self.located, self.search
        sentences = []
        if not located.problems:
            sentences.append(
                f"{located.head} is the induction head: restoring its output alone brings back "
                f"{percent(located.restored[located.head])} of what the model loses when the first half is exchanged. "
                f"No other head brings back more than {percent(located.restored[located.runner_up])}."
            )
            sentences.append(
                f"It spends {percent(located.looks[located.head])} of its attention on the token after the earlier "
                "occurrence of the current token."
            )
        if search.found is not None and search.right:
            sentences.append(
                f"The overflow planted in one layer begins at {search.found.path}: {search.found.infs} of "
                f"{search.found.size} values are infinite there. The training step itself shows only a loss of "
                f"{search.loss}."
            )
        return sentences

    def to_json(self) -> dict[str, Any]:
        """The numbers, as plain Python data; what is not finite as strings, as in `Report.to_json`."""
        nonfinite = self.search.found
        data = {
            "seed": self.seed,
            "steps": len(self.trained.losses),
            "loss": float(self.trained.losses[-1]),
            "clean": float(self.located.sweep.clean),
            "corrupt": float(self.located.sweep.corrupt),
            "head": self.located.head,
            "restored": self.located.restored,
            "attention": self.located.looks,
            "defect": {
                "planted": self.search.planted,
                "found": None if nonfinite is None else nonfinite.path,
                "gradient": None if nonfinite is None else nonfinite.gradient,
                "infs": None if nonfinite is None else nonfinite.infs,
            },
            "findings": self.findings,
            "problems": self.problems,
            "seconds": round(self.seconds, 1),
        }
        return plain(data)


def tell(seed: int = 0, progress: Progress = lambda what, done: None) -> Story:
    """Runs the demo.

    Args:
        seed: Decides weights, data, and the layer with the defect. The same seed gives the same story.
        progress: Called with the current activity and the fraction done.
    """
    start = time.monotonic()

    def on_progress(step: int, loss: float) -> None:
        progress(f"training, loss {loss:.2f}", min(step / FEWEST_STEPS, 1.0))

    progress("training", 0.0)
    trained = train(seed, on_progress)
    progress("looking for the induction head", 0.0)
    located = locate(trained.model, seed)
    progress("planting a defect and searching for it", 0.0)
    search = plant_and_search(trained.model, seed)
    return Story(seed, trained, located, search, time.monotonic() - start)
