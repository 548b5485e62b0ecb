"""The models of the demo on a live page: the one that was trained, and the one with the planted defect."""

from __future__ import annotations

import jax

from sonde.demo.model import AttentionOnly
from sonde.demo.sequences import clean_and_corrupt
from sonde.demo.story import Story
from sonde.viewer.open import subject_of
from sonde.viewer.runs import Runs

TRAINED, DEFECTIVE = "trained", "with a defect"


def subjects(story: Story) -> dict[str, Runs]:
    """What the page shows, by name.

    Args:
        story: A run of the demo.
    """
    clean, _ = clean_and_corrupt(jax.random.fold_in(jax.random.key(story.seed), 3), 1)
    return {
        TRAINED: _runs(story.trained.model, clean, TRAINED),
        DEFECTIVE: _runs(story.search.model, story.search.tokens[:1], DEFECTIVE),
    }


def _runs(model: AttentionOnly, tokens: jax.Array, name: str) -> Runs:
    return Runs(
        subject_of(
            model,
            (tokens,),
            logits=lambda result: result[0],
            readout=model.unembedding,
            stream=("embedded", "stream/*"),
            title=name,
        )
    )
