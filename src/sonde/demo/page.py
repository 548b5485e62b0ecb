"""The page of the demo: a report on one training step of the trained model, and a panel for each part of the story."""

from __future__ import annotations

import jax
import numpy as np

from sonde.demo.defect import training_step
from sonde.demo.locating import ASKED_AT
from sonde.demo.model import HEADS, LAYERS
from sonde.demo.sequences import LENGTH, repeated
from sonde.demo.story import Story
from sonde.report import HeatMap, Lines, Report, Text, examine


def report_of(story: Story) -> Report:
    """The report on the trained model, with the panels of the demo."""
    batch = repeated(jax.random.fold_in(jax.random.key(story.seed), 3), 16)
    title = f"Two layers of attention, seed {story.seed}"
    report = examine(training_step, grads=True, title=title)(story.trained.model, *batch)
    for panel in (_told(story), _loss(story), _attention(story), _heads(story), _positions(story), _defect(story)):
        report.add(panel)
    return report


def letters(tokens: np.ndarray) -> list[str]:
    """Tokens as letters, which are easier to find again than numbers.

    Example:
        >>> letters(np.array([0, 2, 25]))
        ['a', 'c', 'z']
    """
    return [chr(ord("a") + int(token)) for token in tokens]


def _told(story: Story) -> Text:
    missing = [f"Not shown with this seed: {problem}." for problem in story.problems]
    return Text(title="What this run found", text="\n\n".join([*story.findings, *missing]))


def _loss(story: Story) -> Lines:
    return Lines(
        title="Training",
        caption="The loss at tokens that can be predicted. It falls when the induction head forms; then a price on "
        "the use of heads leaves only the heads that are needed.",
        lines={"loss": story.trained.losses},
        x_title="step",
        y_title="nats",
        log=True,
    )


def _attention(story: Story) -> HeatMap:
    labels = letters(story.located.tokens)
    return HeatMap(
        title=f"Where {story.located.head} looks",
        caption="Each row is a position of a sequence that repeats at the half, and shows where its attention goes. In "
        "the lower half, an induction head looks at the letter that followed the current letter the first time.",
        values=story.located.weights,
        rows=labels,
        columns=labels,
        row_title="at",
        column_title="looks at",
        low=0.0,
        high=1.0,
    )


def _heads(story: Story) -> HeatMap:
    restored = np.array(list(story.located.restored.values())).reshape(LAYERS, HEADS)
    sweep = story.located.sweep
    return HeatMap(
        title="Which head does it",
        caption="The first half of the sequence is exchanged, and the logit of the right token falls from "
        f"{float(sweep.clean):.3g} to {float(sweep.corrupt):.3g}. Each cell is the share that comes back when the "
        "output of this head alone is restored.",
        values=restored.round(3) + 0.0,
        rows=[f"layer {layer}" for layer in range(LAYERS)],
        columns=[f"head {head}" for head in range(HEADS)],
        low=-1.0,
        high=1.0,
        signed=True,
    )


def _positions(story: Story) -> HeatMap:
    by_position = story.located.by_position
    return HeatMap(
        title="And at which position",
        caption=f"The same for the token after position {ASKED_AT}, with a head restored at one position only.",
        values=np.stack(list(by_position.restored.values())),
        rows=list(by_position.restored),
        columns=[str(position) for position in range(LENGTH)],
        column_title="position",
        low=-1.0,
        high=1.0,
        signed=True,
    )


def _defect(story: Story) -> Text:
    search = story.search
    planted = (
        f"In a copy of the model, the layer of {search.planted} keeps its scores in float16 and has queries far too "
        f"large. The loss of a training step is then {search.loss}; nothing else is visible from outside."
    )
    answer = "first_nonfinite found nothing." if search.found is None else str(search.found)
    paragraphs = [planted, *(line.strip() for line in answer.splitlines())]
    return Text(title="A planted defect", caption="What first_nonfinite says about it.", text="\n\n".join(paragraphs))
