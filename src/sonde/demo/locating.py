"""Finds the induction head in two independent ways.

By attention: a head does induction if, at a token that occurred before, it attends to the position after the earlier
occurrence. By patching: the model reads sequences whose first half was exchanged, so that it cannot know how they
continue; then the output of one head is restored to its value on the intact sequences. The share of the lost metric
that this restores is the contribution of the head. All heads of both layers are tried, each at all positions.

The metric is the logit of the right token minus the mean of all logits. Logits are sums of the heads' outputs, so
shares of them are comparable; log-probabilities are not.

The previous-token head of the first layer is needed too, but restoring it alone restores nothing: the induction head
then finds the right position, but reads a wrong token there.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

import sonde
from sonde.demo.model import HEADS, AttentionOnly
from sonde.demo.sequences import HALF, LENGTH, clean_and_corrupt
from sonde.tools import Sweep, patch_sweep

ALL_HEADS = "layers/*/heads/*"
NEEDED, ALLOWED = 0.8, 0.2  # what the head must restore at least, and every other one at most
ASKED_AT = LENGTH - 5  # the position whose answer the sweep over positions is about
EXAMPLES = 32


def percent(share: float) -> str:
    """A share as whole percent.

    Example:
        >>> percent(0.997), percent(-0.001)
        ('100 %', '0 %')
    """
    return f"{round(100 * share)} %"


@dataclasses.dataclass(frozen=True)
class Located:
    """The results of both ways.

    Attributes:
        looks: For every head, how much of its attention is where an induction head looks, from 0 to 1.
        sweep: Every head restored, at all positions at once.
        by_position: Every head restored at one position, asked about the token after `ASKED_AT`.
        weights: The attention of the head found in one clean sequence: position, position looked at.
        tokens: That sequence.
    """

    looks: dict[str, float]
    sweep: Sweep
    by_position: Sweep
    weights: np.ndarray
    tokens: np.ndarray

    @property
    def restored(self) -> dict[str, float]:
        """For every head, the share of the lost metric that it brings back."""
        return {path: float(share[0]) for path, share in self.sweep.restored.items()}

    @property
    def head(self) -> str:
        """The head that brings back most."""
        return max(self.restored, key=self.restored.__getitem__)

    @property
    def runner_up(self) -> str:
        """The head that brings back most after it."""
        return max((path for path in self.restored if path != self.head), key=self.restored.__getitem__)

    @property
    def problems(self) -> list[str]:
        """Why this is not a single induction head; empty if it is one."""
        problems = []
        if not self.restored[self.head] > NEEDED:
            problems.append(
                f"{self.head} brings back {percent(self.restored[self.head])}, not more than {percent(NEEDED)}"
            )
        if not self.restored[self.runner_up] < ALLOWED:
            problems.append(f"{self.runner_up} brings back {percent(self.restored[self.runner_up])} too")
        looking = max(self.looks, key=self.looks.__getitem__)
        if looking != self.head:
            problems.append(f"{self.head} brings back most, but {looking} looks in the right place")
        return problems


def right_logits(model: AttentionOnly, tokens: jax.Array) -> jax.Array:
    """The logit of the right token above the mean, at the second half of the sequences: example, position."""
    logits, _ = model(tokens)
    logits = logits - jnp.mean(logits, axis=-1, keepdims=True)
    return jnp.take_along_axis(logits[:, HALF:-1], tokens[:, HALF + 1 :, None], axis=-1)[..., 0]


def right_logit_at_one_place(model: AttentionOnly, tokens: jax.Array) -> jax.Array:
    """The same, at the one position `ASKED_AT`."""
    return right_logits(model, tokens)[:, ASKED_AT - HALF]


def locate(model: AttentionOnly, seed: int) -> Located:
    """Looks for the induction head of a trained model, with sequences it was not trained on."""
    clean, corrupt = clean_and_corrupt(jax.random.fold_in(jax.random.key(seed), 1), EXAMPLES)
    _, records = sonde.capture(model, "layers/*/weights")(clean)
    looks = {}
    for layer, record in enumerate(records.values()):
        positions = jnp.arange(HALF, LENGTH - 1)
        after_earlier = positions - HALF + 1  # the token after the earlier one
        shares = jnp.mean(record.value[:, :, positions, after_earlier], axis=(0, 2))
        looks |= {f"layers/{layer}/heads/{h}": float(shares[h]) for h in range(HEADS)}

    intact, broken = (model, clean), (model, corrupt)
    sweep = patch_sweep(right_logits, ALL_HEADS, metric=jnp.mean, axis=None)(intact, broken)
    by_position = patch_sweep(right_logit_at_one_place, ALL_HEADS, metric=jnp.mean, axis=-2)(intact, broken)
    located = Located(looks, sweep, by_position, np.zeros((0, 0)), np.asarray(clean[0]))
    _, layer, _, head = located.head.split("/")
    weights = records[f"layers/{layer}/weights"].value[0, int(head)]
    return dataclasses.replace(located, weights=np.asarray(weights))
