"""The demo on a pretrained model: what SmolLM2 would say at every layer, its induction heads, where it keeps a fact."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

import sonde
from sonde import models
from sonde.demo.terminal import Pattern
from sonde.report import HeatMap, Report, examine
from sonde.tools import logit_lens, patch_sweep

SENTENCE = "The Eiffel Tower is in the city of"
FACT = "{} is the capital city of the country of"
HALF = 24
LOOKS = 0.5  # the share of its attention from which on a head counts as an induction head


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """What the demo found in a pretrained model.

    Attributes:
        words: The tokens of the sentence.
        said: What the model would say at every layer and position.
        sure: How sure it would be.
        answer: How it continues the sentence.
        induction: For every layer and head, the share of attention on the token that came next the last time.
        fact_words: The tokens of the sentence about a capital.
        restored: For every layer and position, the share of the answer that comes back when one value is exchanged.
        report: The page.
        seconds: How long it all took.
    """

    words: list[str]
    said: list[list[str]]
    sure: np.ndarray
    answer: str
    induction: np.ndarray
    fact_words: list[str]
    restored: np.ndarray
    report: Report
    seconds: float

    @property
    def findings(self) -> list[str]:
        """What was found, a sentence each."""
        layer, head = np.unravel_index(self.induction.argmax(), self.induction.shape)
        sentences = [f"The model continues: {SENTENCE}{self.answer}"]
        first = next(
            (i for i, row in enumerate(self.said) if all(r[-1] == self.said[-1][-1] for r in self.said[i:])), 0
        )
        sentences.append(f"From layer {first} of {len(self.said)} on, it would say {self.said[-1][-1]!r}.")
        sentences.append(
            f"{int((self.induction > LOOKS).sum())} heads spend more than half of their attention on the token that "
            f"came next the last time; head {head} of layer {layer} spends {self.induction[layer, head]:.0%}."
        )
        for position, word in enumerate(self.fact_words):
            layers = np.flatnonzero(self.restored[:, position] > LOOKS)
            if layers.size:
                sentences.append(f"Layers {layers.min()} to {layers.max()} hold the country at the token {word!r}.")
        return sentences

    @property
    def problems(self) -> list[str]:
        """What the demo wanted to show and did not."""
        problems = [] if (self.induction > LOOKS).any() else ["no head looks at the token that came next the last time"]
        return problems + ([] if (self.restored > LOOKS).any() else ["no single value brings the answer back"])

    def to_json(self) -> dict[str, Any]:
        """The numbers, as plain Python data."""
        return {
            "answer": self.answer,
            "said": [row[-1] for row in self.said],
            "induction": self.induction.round(4).tolist(),
            "restored": self.restored.round(4).tolist(),
            "findings": self.findings,
            "problems": self.problems,
            "seconds": round(self.seconds, 1),
        }


def look(progress: Callable[[str, float], None] = lambda what, done: None) -> Pretrained:
    """Runs the demo.

    Args:
        progress: Called with the current activity and the fraction done.

    Raises:
        ModuleNotFoundError: The package with the weights is not installed.
    """
    start = time.monotonic()
    progress("loading SmolLM2", 0.0)
    model = models.load(models.path("smollm2"), layers="scan")
    tokenizer = model.tokenizer
    tokens = jnp.asarray([tokenizer.encode(SENTENCE)])
    progress("reading every layer with the output layer", 0.1)
    lens = logit_lens(model, "blocks/*/out", readout=model.readout, k=1)(tokens)
    said = [tokenizer.pieces(best) for _, best, _ in lens.rows()]
    progress("looking for induction heads", 0.3)
    induction = _induction(model)
    progress("patching every position of every layer", 0.4)
    fact_words, restored = _fact(model)
    progress("writing a continuation", 0.7)
    answer = models.generate(model, SENTENCE, max_new_tokens=8).texts[0]
    progress("examining the model", 0.8)
    report = examine(model, title="SmolLM2-135M")(tokens)
    sure = np.stack([sure for _, _, sure in lens.rows()])
    words = tokenizer.pieces(np.asarray(tokens)[0])
    for panel in _panels(words, said, sure, induction, fact_words, restored):
        report.add(panel)
    taken = time.monotonic() - start
    return Pretrained(words, said, sure, answer, induction, fact_words, restored, report, taken)


def _induction(model: Any) -> np.ndarray:
    vocabulary = model.config.vocabulary
    # Words of the middle: the first tokens are bytes and signs, the last ones rare.
    once = jax.random.randint(jax.random.key(0), (2, HALF), min(1000, vocabulary // 4), min(40000, vocabulary))

    def score(weights: jax.Array) -> jax.Array:
        at = jnp.arange(HALF, 2 * HALF - 1)
        return weights[:, :, at, at - HALF + 1].mean((0, 2))

    run = sonde.capture(model, "blocks/*/attn/weights", reduce=score)
    return np.asarray(run(jnp.concatenate([once, once], axis=1))[1]["blocks/*/attn/weights"].value)


def _fact(model: Any) -> tuple[list[str], np.ndarray]:
    tokenizer = model.tokenizer
    clean, corrupt = (jnp.asarray([tokenizer.encode(FACT.format(city))]) for city in ("Paris", "Rome"))
    right, wrong = tokenizer.one(" France"), tokenizer.one(" Italy")

    def metric(logits: jax.Array) -> jax.Array:
        return logits[0, -1, right] - logits[0, -1, wrong]

    sweep = patch_sweep(model, "blocks/*/out", metric=metric)((clean,), (corrupt,))
    return tokenizer.pieces(np.asarray(clean)[0]), sweep.stacked()


def _panels(
    words: list[str],
    said: list[list[str]],
    sure: np.ndarray,
    induction: np.ndarray,
    fact_words: list[str],
    restored: np.ndarray,
) -> list[HeatMap]:
    layers = [f"layer {i}" for i in range(len(said))]
    ends = [f"{layer}: {row[-1]!r}" for layer, row in zip(layers, said)]
    return [
        HeatMap(
            title="What it would say at every layer",
            caption="The logit lens: how sure the model would be of the next token if it stopped there. Beside every "
            "layer, what it would say after the last word.",
            values=sure.round(4),
            rows=ends,
            columns=words,
            low=0.0,
            high=1.0,
        ),
        HeatMap(
            title="Induction heads",
            caption="A sequence of random tokens, twice: the share of its attention that a head spends on the token "
            "after the earlier occurrence of the current token.",
            values=induction.round(4),
            rows=layers,
            columns=[f"head {i}" for i in range(induction.shape[1])],
            low=0.0,
            high=1.0,
        ),
        HeatMap(
            title="Where a fact is",
            caption="Rome is the capital of Italy. One value at a time is replaced by its value for Paris; each cell "
            "is the share of the answer France that comes back.",
            values=restored.round(4),
            rows=layers,
            columns=fact_words,
            low=-1.0,
            high=1.0,
            signed=True,
        ),
    ]


def show(found: Pretrained) -> Group:
    """What was found as something that rich can print."""
    lens = Table(box=None, pad_edge=False, header_style="dim")
    lens.add_column("  layer", justify="right")
    lens.add_column("would say")
    lens.add_column("sure", justify="right")
    for layer in range(0, len(found.said), 3):
        lens.add_row(f"  {layer}", found.said[layer][-1], f"{found.sure[layer, -1]:.0%}")
    lens.add_row("  end", found.said[-1][-1], f"{found.sure[-1, -1]:.0%}", style="bold green")
    letters = [word.strip()[:1] or "·" for word in found.fact_words]
    rows = [str(i % 10) for i in range(len(found.restored))]
    return Group(
        Text(f"What SmolLM2 would say after {SENTENCE!r}, by layer:", style="bold"),
        lens,
        Text(),
        Text("Which country a sentence is about: where one value brings the answer back, layers downwards:", "bold"),
        Pattern(found.restored, rows, letters),
        Text(),
        Text("Findings", style="bold"),
        *(Text(f"  • {sentence}") for sentence in found.findings),
        *(Text(f"  ✗ Not shown: {problem}.", style="red") for problem in found.problems),
    )
