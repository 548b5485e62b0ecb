"""A defect planted in the trained model, and the search for it.

One layer, which the seed picks, keeps its scores in float16 while its queries are far too large, as after a bad
conversion of a checkpoint. The largest scores pass 65504, where float16 ends, and become infinite; the softmax makes
NaN of them, and at the end of the training step everything is NaN. `first_nonfinite` must name the site where it began.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

import sonde
from sonde import NonFinite, nnx
from sonde.demo.model import LAYERS, AttentionOnly
from sonde.demo.sequences import repeated
from sonde.demo.training import surprise

TOO_LARGE = 4.0  # how many times beyond the end of float16 the largest score is


@dataclasses.dataclass(frozen=True)
class Search:
    """The search for the defect.

    Attributes:
        planted: The path of the site where the values first become infinite.
        found: What `first_nonfinite` says.
        loss: The loss of the step, the only thing visible from outside.
        model: The model with the defect.
        tokens: A batch that shows it.
    """

    planted: str
    found: NonFinite | None
    loss: float
    model: AttentionOnly
    tokens: jax.Array

    @property
    def right(self) -> bool:
        """Whether the site that was found is the planted one."""
        return self.found is not None and self.found.path == self.planted and not self.found.gradient


@nnx.jit
def training_step(model: AttentionOnly, tokens: jax.Array, period: jax.Array) -> tuple[jax.Array, nnx.State]:
    """The loss of a batch and the gradients of the parameters, as a training step computes them."""
    return nnx.value_and_grad(lambda model: surprise(model, tokens, period)[0])(model)


def broken(model: AttentionOnly, layer: int, tokens: jax.Array) -> AttentionOnly:
    """A copy of the model with the defect in one layer, so large that these tokens show it."""
    path = f"layers/{layer}/scores"
    scores = sonde.capture(model, path)(tokens)[1][path].value
    largest = jnp.max(jnp.tril(scores))  # of those that no mask hides afterwards
    copy = nnx.clone(model)
    attention = copy.layers[layer]
    attention.query[...] = attention.query[...] * (TOO_LARGE * float(jnp.finfo(jnp.float16).max) / largest)
    attention.score_dtype = jnp.float16
    return copy


def plant_and_search(model: AttentionOnly, seed: int) -> Search:
    """Plants the defect in a copy of the model, and looks for it in one training step."""
    key = jax.random.fold_in(jax.random.key(seed), 2)
    layer = int(jax.random.randint(key, (), 0, LAYERS))
    batch = repeated(key, 8)
    defective = broken(model, layer, batch[0])
    nonfinite = sonde.first_nonfinite(training_step)(defective, *batch)
    return Search(f"layers/{layer}/scores", nonfinite, float(training_step(defective, *batch)[0]), defective, batch[0])
