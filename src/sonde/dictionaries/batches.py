"""Minibatches for dictionaries, in all the forms in which they come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from sonde.dictionaries.cross_layer import CrossLayerTranscoder
from sonde.dictionaries.crosscoder import Crosscoder
from sonde.dictionaries.objective import Trained


def pairs(batches: Iterable[Any], dictionary: Trained) -> Iterator[tuple[jax.Array, jax.Array]]:
    """Inputs and targets, from minibatches in any of the forms that `train` takes."""
    while True:
        for batch in batches:
            parts = [v for k, v in batch.items() if not k.startswith("keys/")] if isinstance(batch, dict) else batch
            parts = list(parts) if isinstance(parts, (tuple, list)) else [parts]
            if isinstance(dictionary, CrossLayerTranscoder):
                yield _layers(parts, dictionary.layers)
                continue
            if isinstance(dictionary, Crosscoder):
                x = dictionary.joined(parts if len(parts) > 1 or dictionary.sites == 1 else parts[0])
                yield (rows := x.reshape(-1, x.shape[-1])), rows
                continue
            wanted = (1,) if dictionary.kind == "autoencoder" else (2,)
            if len(parts) not in wanted:
                needs = "one array" if dictionary.kind == "autoencoder" else "inputs and targets"
                raise ValueError(
                    f"a batch for a dictionary of the kind {dictionary.kind} is {needs}, got {len(parts)} arrays"
                )
            x, y = (jnp.asarray(p, jnp.float32) for p in (parts[0], parts[-1]))
            yield x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1])
        if iter(batches) is batches:  # an iterator cannot be repeated
            return


def _layers(parts: Sequence[Any], layers: int) -> tuple[jax.Array, jax.Array]:
    """Inputs and targets of a cross-layer transcoder, rows by layers by width."""
    sides = parts if len(parts) == 2 and layers > 1 else (parts[:layers], parts[layers:])
    if any(len(side) != layers for side in sides):
        raise ValueError(
            f"a batch for a cross-layer transcoder of {layers} layers is a pair of {layers} inputs and {layers} "
            f"targets, or all of these in a row, got {len(parts)} parts"
        )
    rows = [[jnp.asarray(p, jnp.float32).reshape(-1, p.shape[-1]) for p in side] for side in sides]
    return jnp.stack(rows[0], 1), jnp.stack(rows[1], 1)
