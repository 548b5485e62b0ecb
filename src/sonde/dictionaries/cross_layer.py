"""Cross-layer transcoders: features that read one layer and write to it and to all later ones.

A cross-layer transcoder of `n` layers is a list of `n` transcoders. Number `i` reads layer `i` and predicts the values
of the layers from `i` on, one after the other in one vector; the predictions for a layer add up. So everything that
works on a transcoder works on its parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sonde import nnx
from sonde.core import Pattern, check_patterns
from sonde.dictionaries.dictionary import Activation, Dictionary


class CrossLayerTranscoder(nnx.Module):
    """Transcoders whose features write to their own layer and to all later ones.

    Args:
        d_in: The width of the inputs.
        n_features: How many features each layer has.
        layers: How many layers there are.
        d_out: The width of the outputs; by default that of the inputs.
        activation: As for a `Dictionary`.
        k: As for a `Dictionary`.
        threshold: As for a `Dictionary`.
        rngs: Random streams; `params` is used.

    Example:
        >>> import jax.numpy as jnp
        >>> from sonde import nnx
        >>> from sonde.dictionaries import CrossLayerTranscoder
        >>> made = CrossLayerTranscoder(8, 32, layers=3, rngs=nnx.Rngs(0))
        >>> outputs = made([jnp.ones((5, 8))] * 3)
        >>> len(outputs), outputs[0].shape, made.parts[1].decoder.shape
        (3, (5, 8), (32, 16))
    """

    def __init__(
        self,
        d_in: int,
        n_features: int,
        *,
        layers: int,
        d_out: int | None = None,
        activation: Activation = "relu",
        k: int | None = None,
        threshold: float = 0.01,
        rngs: nnx.Rngs,
    ) -> None:
        if layers < 1:
            raise ValueError(f"a cross-layer transcoder has at least one layer, got layers={layers}")
        width = d_in if d_out is None else d_out
        self.parts = nnx.List(
            [
                Dictionary(
                    d_in,
                    n_features,
                    kind="transcoder",
                    d_out=width * (layers - i),
                    activation=activation,
                    k=k,
                    threshold=threshold,
                    rngs=rngs,
                )
                for i in range(layers)
            ]
        )

    @property
    def layers(self) -> int:
        """How many layers there are."""
        return len(self.parts)

    def encode(self, inputs: Sequence[jax.Array]) -> list[jax.Array]:
        """The features of every layer."""
        return [part.encode(x) for part, x in zip(self.parts, inputs, strict=True)]

    def decode(self, features: Sequence[jax.Array]) -> list[jax.Array]:
        """The values of every layer that features represent."""
        total: list[Any] = [0] * self.layers
        for i, (part, x) in enumerate(zip(self.parts, features, strict=True)):
            for j, output in enumerate(jnp.split(part.decode(x), self.layers - i, axis=-1)):
                total[i + j] += output
        return total

    def __call__(self, inputs: Sequence[jax.Array]) -> list[jax.Array]:
        """The predictions for every layer."""
        return self.decode(self.encode(inputs))


Transcoders = Mapping[Any, Dictionary | CrossLayerTranscoder]
"""By place: one pattern for an autoencoder, a pair for a transcoder, a pair of sequences for a cross-layer one."""


class Coder(NamedTuple):
    """A transcoder at its place: one site that it reads, and the sites that it writes to."""

    reads: Pattern
    writes: tuple[Pattern, ...]
    dictionary: Dictionary


def coders_of(transcoders: Transcoders, verb: str) -> list[Coder]:
    """The transcoders at their places; a cross-layer one as its parts.

    Raises:
        ValueError: A place does not fit what is there.
    """
    coders: list[Coder] = []
    for place, transcoder in transcoders.items():
        if not isinstance(place, tuple) or len(place) != 2:
            raise ValueError(f"{verb}: {place!r} is not a pair: what a transcoder reads, and what it replaces")
        if isinstance(transcoder, CrossLayerTranscoder):
            reads, writes = (check_patterns(sites, verb) for sites in place)
            if len(reads) != transcoder.layers or len(writes) != transcoder.layers:
                raise ValueError(
                    f"{verb}: a cross-layer transcoder of {transcoder.layers} layers goes with a pair of as many sites "
                    f"each, got {len(reads)} to read and {len(writes)} to replace"
                )
            coders += [Coder(read, writes[i:], transcoder.parts[i]) for i, read in enumerate(reads)]
        elif transcoder.kind in ("transcoder", "skip_transcoder"):
            reads, replaced = check_patterns(place, verb)
            coders.append(Coder(reads, (replaced,), transcoder))
        else:
            raise ValueError(f"{verb}: the dictionary for {place!r} is of the kind {transcoder.kind}, not a transcoder")
    if not coders:
        raise ValueError(f"{verb}: there are no transcoders")
    return coders
