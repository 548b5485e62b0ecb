"""Rotary position embeddings, and the ways in which checkpoints scale them to longer texts.

A head's features are taken in pairs, and every pair is rotated by an angle: position times the frequency of the pair.
Feature `i` is paired with feature `i + width/2` (the layout of Hugging Face checkpoints), or with its neighbor if
`interleaved`. Only the first `width` features are rotated; the rest pass unchanged.

Sharp edge: `dynamic` and `longrope` frequencies depend on the length of the text. Here that is the length of each row,
so that a text gives the same numbers whatever else is in its batch; `transformers` takes the longest row for all. A
cache of keys and values is valid only while the frequencies stay the same.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde.errors import LayerInputError

KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


@dataclasses.dataclass(frozen=True)
class Rotary:
    """Frequencies of a rotary embedding.

    Attributes:
        width: How many features of a head are rotated.
        theta: The base of the frequencies.
        kind: How the frequencies are scaled, one of `KINDS`.
        factor: By how much the trained length is stretched.
        trained_length: Positions that the model was trained on before it was stretched.
        low_factor: `llama3`: wavelengths longer than `trained_length / low_factor` are stretched in full.
        high_factor: `llama3`: wavelengths shorter than `trained_length / high_factor` stay.
        beta_fast: `yarn`: pairs that rotate more often than this within the trained length stay.
        beta_slow: `yarn`: pairs that rotate less often than this are stretched in full.
        truncate: `yarn`: whether the two limits are rounded to whole pairs.
        scale: What cosines and sines are multiplied by; None: chosen by the kind.
        mscale: `yarn`: together with `mscale_all_dim`, determines `scale`.
        mscale_all_dim: See `mscale`.
        short_factors: `longrope`: a divisor for every pair, for texts up to the trained length.
        long_factors: `longrope`: a divisor for every pair, for longer texts.
    """

    width: int
    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    trained_length: int = 2048
    low_factor: float = 1.0
    high_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    scale: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise LayerInputError(f"unknown scaling {self.kind!r} for rotary embeddings; known are {', '.join(KINDS)}.")
        if self.width % 2:
            raise LayerInputError(f"a rotary embedding rotates pairs of features, so it cannot rotate {self.width}.")

    @classmethod
    def from_config(
        cls, scaling: Mapping[str, Any] | None, *, width: int, theta: float, max_positions: int, original: int | None
    ) -> Rotary:
        """Reads the `rope_scaling` of a Hugging Face config.

        Args:
            scaling: The entry, or None.
            width: How many features of a head are rotated.
            theta: The base of the frequencies.
            max_positions: `max_position_embeddings` of the config.
            original: `original_max_position_embeddings` of the config itself, if it has one.
        """
        entries = dict(scaling or {})
        kind = entries.get("rope_type", entries.get("type", "default"))
        trained = entries.get("original_max_position_embeddings", original) or max_positions
        factor = entries.get("factor")
        if kind in ("longrope", "su"):
            # The two lengths take precedence over a factor, which some checkpoints also have.
            kind, factor = "longrope", factor if original is None and factor else max_positions / trained
        return cls(
            width=width,
            theta=float(entries.get("rope_theta", theta)),
            kind=kind,
            factor=float(factor or 1.0),
            trained_length=int(max_positions if kind == "dynamic" else trained),
            low_factor=float(entries.get("low_freq_factor", 1.0)),
            high_factor=float(entries.get("high_freq_factor", 4.0)),
            beta_fast=float(entries.get("beta_fast") or 32.0),
            beta_slow=float(entries.get("beta_slow") or 1.0),
            truncate=bool(entries.get("truncate", True)),
            scale=entries.get("attention_factor"),
            mscale=entries.get("mscale"),
            mscale_all_dim=entries.get("mscale_all_dim"),
            short_factors=tuple(entries.get("short_factor", ())),
            long_factors=tuple(entries.get("long_factor", ())),
        )

    @property
    def depends_on_length(self) -> bool:
        """Whether the frequencies change with the length of the text."""
        return self.kind == "dynamic" or (self.kind == "longrope" and self.short_factors != self.long_factors)

    def changes_between(self, first: int, last: int) -> bool:
        """Whether the frequencies differ between texts of `first` and of `last` tokens."""
        if not self.depends_on_length or last <= self.trained_length:
            return False
        return self.kind == "dynamic" or first <= self.trained_length


def rotary_frequencies(rotary: Rotary) -> np.ndarray:
    """The angle by which every pair is rotated from one position to the next, for texts of the trained length.

    Example:
        >>> rotary_frequencies(Rotary(4, theta=100.0)).tolist()
        [1.0, 0.10000000149011612]
    """
    plain = _plain(rotary.width, rotary.theta)
    match rotary.kind:
        case "linear":
            return plain / np.float32(rotary.factor)
        case "llama3":
            return _llama3(rotary, plain)
        case "yarn":
            return _yarn(rotary, plain)
        case "longrope":
            return plain / np.asarray(rotary.short_factors, np.float32)
        case _:
            return plain


def rotary_scale(rotary: Rotary) -> float:
    """What cosines and sines are multiplied by."""
    if rotary.scale is not None:
        return float(rotary.scale)
    if rotary.kind == "yarn":
        if rotary.mscale and rotary.mscale_all_dim:
            return _magnitude(rotary.factor, rotary.mscale) / _magnitude(rotary.factor, rotary.mscale_all_dim)
        return _magnitude(rotary.factor)
    if rotary.kind == "longrope" and rotary.factor > 1:
        return math.sqrt(1 + math.log(rotary.factor) / math.log(rotary.trained_length))
    return 1.0


def rotary_tables(
    positions: jax.Array, rotary: Rotary, *, length: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines for some positions, in float32.

    Args:
        positions: Integers, `(batch..., length)`.
        rotary: The frequencies.
        length: The length of each text, broadcast to `(batch..., 1)`, if frequencies depend on it; if None,
            each text ends at the last of its positions.

    Returns:
        Two arrays `(*positions.shape, width / 2)`.

    Example:
        >>> import jax.numpy as jnp
        >>> cos, sin = rotary_tables(jnp.arange(3), Rotary(4))
        >>> cos.shape, float(cos[0, 0]), float(sin[0, 0])
        ((3, 2), 1.0, 0.0)
    """
    if rotary.depends_on_length:
        length = positions.max(-1, keepdims=True) + 1 if length is None else length
        frequencies = _at_length(rotary, length[..., None])
    else:
        # NumPy, computed while tracing: the tables are constants of the program.
        frequencies = _on_last_axis(rotary_frequencies(rotary), positions.ndim + 1)
    angles = positions.astype(jnp.float32)[..., None] * frequencies
    scale = rotary_scale(rotary)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return (cos, sin) if scale == 1 else (cos * scale, sin * scale)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array, *, interleaved: bool = False) -> jax.Array:
    """Rotates the first features of every head.

    Args:
        x: `(batch..., length, heads, depth)`.
        cos: `(batch..., length, pairs)`, with at most as many batch axes as `x`.
        sin: Like `cos`.
        interleaved: Whether feature `2i` is paired with `2i + 1`.

    Returns:
        An array shaped like `x`, in its dtype.

    Raises:
        LayerInputError: There are more pairs than a head has.

    Example:
        >>> import jax.numpy as jnp
        >>> quarter = jnp.zeros((1, 1)), jnp.ones((1, 1))
        >>> rotate(jnp.array([[[1.0, 0.0, 5.0]]]), *quarter)
        Array([[[0., 1., 5.]]], dtype=float32)
    """
    pairs = cos.shape[-1]
    if 2 * pairs > x.shape[-1]:
        raise LayerInputError(f"{pairs} pairs of features are rotated, but a head has only {x.shape[-1]} features.")
    # Axes of one element for the heads, and for batch axes that the tables lack: ranks are never promoted.
    batch_axes = tuple(range(x.ndim - 1 - cos.ndim))
    cos, sin = (jnp.expand_dims(table, (*batch_axes, x.ndim - 2)) for table in (cos, sin))
    # In float32: the angles of late positions need its digits.
    turning, unrotated = x[..., : 2 * pairs].astype(jnp.float32), x[..., 2 * pairs :]
    if interleaved:
        a, b = turning[..., 0::2], turning[..., 1::2]
        turned = jnp.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(turning.shape)
    else:
        a, b = turning[..., :pairs], turning[..., pairs:]
        turned = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
    turned = turned.astype(x.dtype)
    return turned if not unrotated.shape[-1] else jnp.concatenate([turned, unrotated], -1)


def _plain(width: int, theta: float) -> np.ndarray:
    return (1.0 / theta ** (np.arange(0, width, 2, dtype=np.float32) / width)).astype(np.float32)


def _llama3(rotary: Rotary, plain: np.ndarray) -> np.ndarray:
    # Fast pairs, which tell neighboring positions apart, stay; slow ones are stretched; those between are blended.
    wavelengths = 2 * math.pi / plain
    stretched = np.where(wavelengths > rotary.trained_length / rotary.low_factor, plain / rotary.factor, plain)
    blend = (rotary.trained_length / wavelengths - rotary.low_factor) / (rotary.high_factor - rotary.low_factor)
    blended = (1 - blend) * plain / rotary.factor + blend * plain
    is_long = wavelengths > rotary.trained_length / rotary.low_factor
    is_short = wavelengths < rotary.trained_length / rotary.high_factor
    return np.where(~is_long & ~is_short, blended, stretched).astype(np.float32)


def _yarn(rotary: Rotary, plain: np.ndarray) -> np.ndarray:
    # Pairs that turn more than `beta_fast` times in a text of the trained length stay, those that turn less than
    # `beta_slow` times are stretched, and a ramp over the pairs leads from one to the other.
    def pair_that_turns(times: float) -> float:
        return rotary.width * math.log(rotary.trained_length / (times * 2 * math.pi)) / (2 * math.log(rotary.theta))

    low, high = pair_that_turns(rotary.beta_fast), pair_that_turns(rotary.beta_slow)
    if rotary.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary.width - 1)
    ramp = (np.arange(rotary.width // 2, dtype=np.float32) - low) / ((high - low) or 0.001)
    keep = 1 - np.clip(ramp, 0, 1)
    return (plain / rotary.factor * (1 - keep) + plain * keep).astype(np.float32)


def _magnitude(factor: float, mscale: float = 1.0) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _on_last_axis(values: np.ndarray, ndim: int) -> np.ndarray:
    """A vector with axes of one element in front."""
    return values.reshape((1,) * (ndim - 1) + values.shape)


def _at_length(rotary: Rotary, length: jax.Array) -> jax.Array:
    """The frequencies for texts of some lengths, on a new last axis."""
    if rotary.kind == "longrope":
        plain = _plain(rotary.width, rotary.theta)
        short, long = (
            _on_last_axis(plain / np.asarray(factors, np.float32), length.ndim) for factors in _factors(rotary)
        )
        return jnp.where(length > rotary.trained_length, long, short)
    # The base grows with the text, so that the slowest pair never rotates further than in training.
    ratio = jnp.maximum(length, rotary.trained_length) / rotary.trained_length
    stretch = (rotary.factor * ratio - (rotary.factor - 1)) ** (rotary.width / (rotary.width - 2))
    exponents = np.arange(0, rotary.width, 2, dtype=np.float32) / rotary.width
    return 1.0 / (rotary.theta * stretch) ** _on_last_axis(exponents, length.ndim)


def _factors(rotary: Rotary) -> tuple[tuple[float, ...], tuple[float, ...]]:
    for name, factors in (("short", rotary.short_factors), ("long", rotary.long_factors)):
        if len(factors) != rotary.width // 2:
            raise LayerInputError(f"longrope needs {rotary.width // 2} {name} factors, got {len(factors)}.")
    return rotary.short_factors, rotary.long_factors
