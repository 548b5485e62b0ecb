"""Paddings of convolutions, converted to the form that `lax.conv_general_dilated` takes.

A padding is `'SAME'`, `'VALID'`, `'SAME_LOWER'`, `'CIRCULAR'` (the input is periodic), `'REFLECT'` (mirrored
at the edge, the edge itself not repeated), `'CAUSAL'` (one axis: outputs see only earlier inputs), a number
for all sides, or one number or (low, high) pair per spatial axis.

CIRCULAR and REFLECT pad the array itself; everything else is left to the convolution, which need not store the padding.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from sonde.errors import LayerInputError

Padding = str | int | Sequence[int | tuple[int, int]]
LaxPadding = str | list[tuple[int, int]]

_BY_COPYING = {"CIRCULAR": "wrap", "REFLECT": "reflect"}
_BY_CONVOLUTION = ("SAME", "VALID", "SAME_LOWER")


def per_axis(value: int | Sequence[int] | None, rank: int, *, option: str) -> tuple[int, ...]:
    """One number for each spatial axis: None means 1, a single number applies to all."""
    if value is None:
        return (1,) * rank
    if isinstance(value, int):
        return (value,) * rank
    if len(value) != rank:
        raise LayerInputError(
            f"`{option}` must be a number or have one number for each of the {rank} spatial axes, got {tuple(value)}."
        )
    return tuple(value)


def canonicalize_padding(padding: Padding, rank: int) -> LaxPadding:
    """A name stays a name; numbers become one (low, high) pair per spatial axis.

    Raises:
        LayerInputError: The padding has none of the forms above.

    Example:
        >>> canonicalize_padding([1, (0, 2)], 2)
        [(1, 1), (0, 2)]
    """
    match padding:
        case str():
            return padding
        case int():
            sides = [padding] * rank
        case _:
            sides = padding if isinstance(padding, Sequence) else ()
    pairs = [(side, side) if isinstance(side, int) else tuple(side or ()) for side in sides]
    if len(pairs) != rank or any(len(pair) != 2 for pair in pairs):
        raise LayerInputError(
            f"padding={padding!r} is not valid: expected a name, a number, or for each of the {rank} spatial axes "
            "a number or a (low, high) pair."
        )
    return [(low, high) for low, high in pairs]


def apply_padding(
    inputs: jax.Array,
    padding: Padding,
    *,
    kernel_size: Sequence[int],
    kernel_dilation: Sequence[int],
) -> tuple[jax.Array, LaxPadding]:
    """Pads what the convolution cannot pad itself.

    Args:
        inputs: `(batch, spatial..., features)`.
        padding: Any of the forms above.
        kernel_size: One number per spatial axis.
        kernel_dilation: One number per spatial axis.

    Returns:
        The inputs, padded if they must be, and the padding left for the convolution.
    """
    rank = len(kernel_size)
    lax_padding = canonicalize_padding(padding, rank)
    if not isinstance(lax_padding, str):
        return inputs, lax_padding
    if lax_padding.upper() in _BY_CONVOLUTION:  # JAX takes its names in any case
        return inputs, lax_padding.upper()
    # How far a window reaches from its first element to its last.
    reach = [(size - 1) * dilation for size, dilation in zip(kernel_size, kernel_dilation)]
    if lax_padding in _BY_COPYING:
        pads = [(0, 0), *((r // 2, (r + 1) // 2) for r in reach), (0, 0)]
        return jnp.pad(inputs, pads, mode=_BY_COPYING[lax_padding]), "VALID"
    if lax_padding == "CAUSAL":
        if rank != 1:
            raise LayerInputError(
                f"padding 'CAUSAL' needs one spatial axis to run along, got a kernel with {rank} spatial axes."
            )
        return inputs, [(reach[0], 0)]
    names = ", ".join(repr(n) for n in (*_BY_CONVOLUTION, *_BY_COPYING, "CAUSAL"))
    raise LayerInputError(f"unknown padding {padding!r}: expected one of {names}, a number, or pairs of numbers.")
