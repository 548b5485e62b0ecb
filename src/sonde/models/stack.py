"""Running the blocks of a model, one after the other or as one scan, with or without a cache.

Blocks are a list of Modules, or one Module whose arrays have an axis for the layers in front. Both have the same
weights and give the same numbers; a scan compiles once for all layers. What differs between layers (`Kind`) is known
when a list is traced; in a scan it is chosen by the layer's number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from sonde import nnx, ops
from sonde.core import scope
from sonde.models.block import Block
from sonde.models.config import Config, Kind

Layers = Literal["list", "scan"]
Blocks = Any  # nnx.List of Blocks, or one Block with a layer axis


class KeyValueCache(NamedTuple):
    """Keys and values of every layer, and how many slots are filled.

    Attributes:
        keys: For a list of layers, a tuple of arrays `(batch, slots, key heads, depth)`; for a scan, one array with a
            leading axis for the layers.
        values: As `keys`.
        filled: How many slots are filled, the same for all rows of the batch.
    """

    keys: Any
    values: Any
    filled: jax.Array

    @property
    def slots(self) -> int:
        """The number of slots."""
        return (self.keys[0] if isinstance(self.keys, tuple) else self.keys).shape[-3]


class Visibility(NamedTuple):
    """What all layers of one kind share: which keys are visible, and the rotation of positions."""

    mask: jax.Array | None
    rotation: tuple[jax.Array, jax.Array] | None


def new_blocks(config: Config, layers: Layers, *, rngs: nnx.Rngs, dtype: DTypeLike) -> Blocks:
    """The blocks of a model, with initial weights.

    Raises:
        ValueError: `layers` is neither `"list"` nor `"scan"`.
    """
    if layers == "list":
        return nnx.List([Block(config, rngs=rngs, dtype=dtype) for _ in range(config.layers)])
    if layers != "scan":
        raise ValueError(f"layers must be 'list' or 'scan', got {layers!r}.")
    make = nnx.vmap(lambda rngs: Block(config, rngs=rngs, dtype=dtype), in_axes=0, out_axes=0)
    return nnx.split_rngs(splits=config.layers)(make)(rngs)


def new_cache(config: Config, layers: Layers, batch: int, slots: int, dtype: DTypeLike) -> KeyValueCache:
    """An empty cache."""
    shape = (batch, slots, config.key_heads, config.depth)
    if layers == "scan":
        zeros: Any = jnp.zeros((config.layers, *shape), dtype)
        return KeyValueCache(zeros, zeros, jnp.int32(0))
    empty = tuple(jnp.zeros(shape, dtype) for _ in range(config.layers))
    return KeyValueCache(empty, empty, jnp.int32(0))


def run_blocks(
    blocks: Blocks,
    config: Config,
    x: jax.Array,
    *,
    positions: jax.Array,
    valid: jax.Array | None = None,
    cache: KeyValueCache | None = None,
    text_length: jax.Array | None = None,
) -> tuple[jax.Array, KeyValueCache | None]:
    """Applies all blocks.

    Args:
        blocks: A list of blocks, or one with a layer axis.
        config: The description of the model.
        x: `(batch, length, width)`.
        positions: `(batch or 1, length)`: the position of every token in its text.
        valid: `(batch or 1, keys)`: which keys are not padding; with a cache, which of its slots.
        cache: Keys and values of earlier positions; those of `x` go into its next slots.
        text_length: `(batch or 1, 1)`: the length of each text, if rotary frequencies depend on it; up to the last
            position if None.

    Returns:
        The residual stream after the last block, and the new cache.
    """
    if cache is None:
        key_positions = positions
    else:
        # Slots are filled in the order of the text, so distances between slots are distances between positions.
        first = cache.filled - positions[:, :1]
        key_positions = jnp.arange(cache.slots, dtype=positions.dtype)[None] - first
    visible = [_seen(config, kind, positions, key_positions, valid, text_length) for kind in config.kinds]
    run: Any = _run_list if isinstance(blocks, nnx.List) else _run_scan
    x, filled = run(blocks, config, x, visible, cache)
    if cache is None or filled is None:
        return x, None
    return x, KeyValueCache(filled[0], filled[1], cache.filled + x.shape[1])


def _seen(
    config: Config,
    kind: Kind,
    positions: jax.Array,
    key_positions: jax.Array,
    valid: jax.Array | None,
    text_length: jax.Array | None,
) -> Visibility:
    mask = ops.visible(positions, key_positions, causal=config.causal, window=kind.window, valid=valid)
    rotation = None if kind.rotary is None else ops.rotary_tables(positions, kind.rotary, length=text_length)
    return Visibility(mask, rotation)


def _run_list(
    blocks: Any, config: Config, x: jax.Array, seen: list[Visibility], cache: KeyValueCache | None
) -> tuple[jax.Array, tuple[Any, Any] | None]:
    caches: list[nnx.KeyValues] = []
    for layer, block in enumerate(blocks):
        write = None
        if cache is not None:
            write = _writer(nnx.KeyValues(cache.keys[layer], cache.values[layer]), (0, cache.filled, 0, 0), caches)
        mask, rotation = seen[config.kind_of[layer]]
        x = block(x, mask=mask, rotation=rotation, cache=write)
    if cache is None:
        return x, None
    return x, (tuple(of_layer.keys for of_layer in caches), tuple(of_layer.values for of_layer in caches))


def _writer(
    cached: nnx.KeyValues, start: tuple[Any, ...], kept: list[nnx.KeyValues]
) -> Callable[[nnx.KeyValues], nnx.KeyValues]:
    """A function that puts new keys and values into a cache and keeps it."""

    def write(new: nnx.KeyValues) -> nnx.KeyValues:
        whole = nnx.KeyValues(*(lax.dynamic_update_slice(a, b.astype(a.dtype), start) for a, b in zip(cached, new)))
        kept.append(whole)
        return whole

    return write


def _run_scan(
    blocks: Block, config: Config, x: jax.Array, seen: list[Visibility], cache: KeyValueCache | None
) -> tuple[jax.Array, tuple[Any, Any] | None]:
    one_kind = len(config.kinds) == 1
    stacked = seen[0] if one_kind else cast(Visibility, jax.tree.map(lambda *parts: jnp.stack(_alike(parts)), *seen))
    kinds = jnp.asarray(np.asarray(config.kind_of, np.int32))
    whole = None if cache is None else nnx.KeyValues(cache.keys, cache.values)
    slot = jnp.int32(0) if cache is None else cache.filled

    def step(carry: Any, block: Block, layer: jax.Array, kind: jax.Array) -> Any:
        x, whole = carry
        mask, rotation = stacked if one_kind else jax.tree.map(lambda part: part[kind], stacked)
        if whole is None:
            return block(x, mask=mask, rotation=rotation), None
        caches: list[nnx.KeyValues] = []

        def write(new: nnx.KeyValues) -> nnx.KeyValues:
            start = (layer, 0, slot, 0, 0)
            filled = [lax.dynamic_update_slice(a, b[None].astype(a.dtype), start) for a, b in zip(whole, new)]
            caches.append(nnx.KeyValues(*filled))
            return nnx.KeyValues(*(lax.dynamic_index_in_dim(a, layer, keepdims=False) for a in filled))

        x = block(x, mask=mask, rotation=rotation, cache=write)
        return x, caches[0]

    run = nnx.scan(step, in_axes=(nnx.Carry, 0, 0, 0), out_axes=nnx.Carry)
    with scope("blocks/*"):
        x, whole = run((x, whole), blocks, jnp.arange(config.layers), kinds)
    return x, None if whole is None else tuple(whole)


def _alike(parts: tuple[jax.Array, ...]) -> list[jax.Array]:
    return list(jnp.broadcast_arrays(*parts))
