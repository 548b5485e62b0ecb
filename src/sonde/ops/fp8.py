"""Products of matrices in 8-bit floats, with scales derived from earlier arrays.

An array is divided by a scale, so that it fits into 8-bit floats, and the product is multiplied by the scale again. The
scale comes from a history of largest magnitudes, one for each of the last calls. Both are updated by the backward pass:
the "gradients" of a scale and of its history are their next values, which an optimizer must write over the old ones.

Two ways: round the operands and multiply them in the original dtype (`in_qdq`, `out_qdq`), or multiply the 8-bit arrays
themselves (`in_q`, `quantized_dot`, `out_dq`).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import DotDimensionNumbers, PrecisionLike

from sonde.ops.dtypes import Dtype
from sonde.ops.max_gradient import as_dtype_of, as_floats


def get_fp8_max(fp8_dtype: Dtype, out_dtype: Dtype) -> jax.Array:
    """The largest number of an 8-bit dtype, in another dtype."""
    return jnp.finfo(fp8_dtype).max.astype(out_dtype)


def quantize(x: jax.Array, q_dtype: Dtype, scale: jax.Array, compute_dtype: Dtype) -> jax.Array:
    """Divides by the scale, in `compute_dtype`, clips what does not fit, and rounds to 8 bits."""
    limit = get_fp8_max(q_dtype, compute_dtype)
    divisor = jnp.broadcast_to(jnp.asarray(scale, compute_dtype), jnp.shape(x))
    return jnp.clip(jnp.asarray(x, compute_dtype) / divisor, -limit, limit).astype(q_dtype)


def dequantize(x: jax.Array, dq_dtype: Dtype, scale: jax.Array) -> jax.Array:
    """Multiplies by the scale, in `dq_dtype`."""
    return x.astype(dq_dtype) * jnp.broadcast_to(jnp.asarray(scale, dq_dtype), jnp.shape(x))


def qdq(x: jax.Array, q_dtype: Dtype, scale: jax.Array, compute_dtype: Dtype) -> jax.Array:
    """Rounds to what 8 bits can hold at this scale."""
    return dequantize(quantize(x, q_dtype, scale, compute_dtype), jnp.result_type(x), scale)


def compute_scale(amax: jax.Array, scale: jax.Array, fp8_max: jax.Array, margin: int = 0) -> jax.Array:
    """The scale for arrays with this largest magnitude; the old one if that is zero, infinite or NaN."""
    factor = fp8_max / amax / 2**margin
    usable = (amax > 0) & jnp.isfinite(amax)
    # Take the reciprocal even if the old scale stays, so that both cases round alike.
    return 1 / jnp.where(usable, factor, 1 / scale)


def compute_amax_history(x: jax.Array, amax_history: jax.Array) -> jax.Array:
    """The history, with the largest magnitude of one more array."""
    largest = jnp.max(jnp.abs(x)).astype(amax_history.dtype)
    return jnp.roll(amax_history, -1, axis=0).at[0].set(largest)


def update_fp8_meta(
    x: jax.Array, q_dtype: Dtype, scale: jax.Array, amax_history: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The next scale, computed from the history so far, and the history with this array added."""
    plain_scale, plain_history = as_floats(scale), as_floats(amax_history)
    limit = get_fp8_max(q_dtype, jnp.float32)
    new_scale = compute_scale(jnp.max(plain_history, axis=0), plain_scale, limit)
    new_history = compute_amax_history(x, plain_history)
    return as_dtype_of(new_scale, scale), as_dtype_of(new_history, amax_history)


def quantize_dequantize_update(
    x: jax.Array, q_dtype: Dtype, scale: jax.Array, amax_history: jax.Array, compute_dtype: Dtype
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The array rounded at the next scale, that scale, and the next history."""
    new_scale, new_history = update_fp8_meta(x, q_dtype, scale, amax_history)
    return qdq(x, q_dtype, as_floats(new_scale), compute_dtype), new_scale, new_history


# ------------------------------------------------------------------------------------- rounding around a product


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def in_qdq(
    compute_dtype: Dtype, q_dtype: Dtype, inp: jax.Array, scale: jax.Array, amax_history: jax.Array
) -> jax.Array:
    """Rounds an operand; its gradient passes unchanged."""
    return quantize_dequantize_update(inp, q_dtype, scale, amax_history, compute_dtype)[0]


def _in_qdq_forward(
    compute_dtype: Dtype, q_dtype: Dtype, inp: jax.Array, scale: jax.Array, amax_history: jax.Array
) -> Any:
    rounded, *updated = quantize_dequantize_update(inp, q_dtype, scale, amax_history, compute_dtype)
    return rounded, tuple(updated)


def _in_qdq_backward(compute_dtype: Dtype, q_dtype: Dtype, updated: tuple[jax.Array, ...], gradient: jax.Array) -> Any:
    return (gradient, *updated)


in_qdq.defvjp(_in_qdq_forward, _in_qdq_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def out_qdq(
    compute_dtype: Dtype, q_dtype: Dtype, out: jax.Array, scale: jax.Array, amax_history: jax.Array
) -> jax.Array:
    """Returns the product unchanged, but rounds its gradient."""
    return out


def _out_qdq_forward(
    compute_dtype: Dtype, q_dtype: Dtype, out: jax.Array, scale: jax.Array, amax_history: jax.Array
) -> Any:
    return out, (scale, amax_history)


def _out_qdq_backward(
    compute_dtype: Dtype, q_dtype: Dtype, saved: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> Any:
    scale, amax_history = saved
    return quantize_dequantize_update(gradient, q_dtype, scale, amax_history, compute_dtype)


out_qdq.defvjp(_out_qdq_forward, _out_qdq_backward)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3, 4))
def dot_general_with_precision(
    lhs: jax.Array,
    rhs: jax.Array,
    dimension_numbers: DotDimensionNumbers,
    precision: PrecisionLike = None,
    preferred_element_type: Dtype | None = None,
) -> jax.Array:
    """`lax.dot_general`, fast in the forward pass and exact in the backward pass, whatever `precision` is.

    XLA recognizes products of 8-bit arrays by this.
    """
    return lax.dot_general(lhs, rhs, dimension_numbers, precision=lax.Precision.DEFAULT)


@dot_general_with_precision.defjvp
def _dot_general_jvp(
    dimension_numbers: DotDimensionNumbers,
    precision: PrecisionLike,
    preferred_element_type: Dtype | None,
    primals: tuple[jax.Array, jax.Array],
    tangents: tuple[jax.Array, jax.Array],
) -> Any:
    (lhs, rhs), (lhs_dot, rhs_dot) = primals, tangents
    out = lax.dot_general(lhs, rhs, dimension_numbers, precision=lax.Precision.DEFAULT)
    exact = functools.partial(lax.dot_general, dimension_numbers=dimension_numbers, precision=lax.Precision.HIGHEST)
    return out, exact(lhs, rhs_dot) + exact(lhs_dot, rhs)


# --------------------------------------------------------------------------------------- products of 8 bit arrays


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def in_q(compute_dtype: Dtype, q_dtype: Dtype, inp: jax.Array, scale: jax.Array, amax_history: jax.Array) -> Any:
    """An operand in 8 bits, and the scale it was divided by. `quantized_dot` computes the gradient of the operand."""
    new_scale, _ = update_fp8_meta(inp, q_dtype, scale, amax_history)
    return quantize(inp, q_dtype, as_floats(new_scale), compute_dtype), new_scale


def _in_q_forward(
    compute_dtype: Dtype, q_dtype: Dtype, inp: jax.Array, scale: jax.Array, amax_history: jax.Array
) -> Any:
    new_scale, new_history = update_fp8_meta(inp, q_dtype, scale, amax_history)
    small = quantize(inp, q_dtype, as_floats(new_scale), compute_dtype)
    return (small, new_scale), (jnp.zeros_like(inp), new_scale, new_history)


def _in_q_backward(
    compute_dtype: Dtype, q_dtype: Dtype, saved: tuple[jax.Array, ...], gradients: tuple[jax.Array, ...]
) -> Any:
    # No derivatives: the optimizer writes the last two over the old scale and history.
    return saved


in_q.defvjp(_in_q_forward, _in_q_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def out_dq(dq_type: Dtype, lhs_scale: jax.Array, rhs_scale: jax.Array, out: jax.Array) -> jax.Array:
    """Multiplies a product of 8-bit arrays by their scales; its gradient passes unchanged."""
    return dequantize(out, dq_type, as_floats(lhs_scale) * as_floats(rhs_scale))


def _out_dq_forward(dq_type: Dtype, lhs_scale: jax.Array, rhs_scale: jax.Array, out: jax.Array) -> Any:
    return out_dq(dq_type, lhs_scale, rhs_scale, out), (lhs_scale, rhs_scale, jnp.zeros((), out.dtype))


def _out_dq_backward(dq_type: Dtype, saved: tuple[jax.Array, ...], gradient: jax.Array) -> Any:
    *scales, like = saved
    # `in_q` has already returned what an optimizer writes over these scales.
    nothing = (as_dtype_of(jnp.zeros_like(as_floats(scale)), scale) for scale in scales)
    return (*nothing, gradient.astype(like.dtype))


out_dq.defvjp(_out_dq_forward, _out_dq_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(8, 9))
def quantized_dot(
    lhs: jax.Array,
    q_lhs: jax.Array,
    lhs_scale: jax.Array,
    rhs: jax.Array,
    q_rhs: jax.Array,
    rhs_scale: jax.Array,
    out_grad_scale: jax.Array,
    out_grad_amax_history: jax.Array,
    dimension_numbers: DotDimensionNumbers,
    preferred_element_type: Dtype | None = None,
) -> jax.Array:
    """The product of two 8-bit arrays, not multiplied by their scales. In the backward pass, gradients have 8 bits too.

    The gradients go to `lhs` and `rhs`, the operands before they were rounded.
    """
    return lax.dot_general(
        q_lhs,
        q_rhs,
        dimension_numbers,
        precision=lax.Precision.DEFAULT,
        preferred_element_type=preferred_element_type,
    )


def _quantized_dot_forward(*arguments: Any) -> Any:
    lhs, *saved = arguments[:8]
    rhs = saved.pop(2)
    return quantized_dot(*arguments), (*saved, jnp.zeros((), lhs.dtype), jnp.zeros((), rhs.dtype))


def _quantized_dot_backward(
    dimension_numbers: DotDimensionNumbers,
    preferred_element_type: Dtype,
    saved: tuple[jax.Array, ...],
    gradient: jax.Array,
) -> Any:
    q_lhs, lhs_scale, q_rhs, rhs_scale, scale, history, like_lhs, like_rhs = saved
    new_scale, new_history = update_fp8_meta(gradient, jnp.float8_e5m2, scale, history)
    plain_scale = as_floats(new_scale)
    small = quantize(gradient, jnp.float8_e5m2, plain_scale, preferred_element_type)
    of_lhs, of_rhs, of_out = _letters(dimension_numbers, jnp.ndim(q_lhs), jnp.ndim(q_rhs))
    exact = functools.partial(
        jnp.einsum, precision=lax.Precision.HIGHEST, preferred_element_type=preferred_element_type
    )
    to_lhs = exact(f"{of_out},{of_rhs}->{of_lhs}", small, q_rhs)
    to_rhs = exact(f"{of_out},{of_lhs}->{of_rhs}", small, q_lhs)
    for_lhs = dequantize(to_lhs, preferred_element_type, as_floats(rhs_scale) * plain_scale).astype(like_lhs.dtype)
    for_rhs = dequantize(to_rhs, preferred_element_type, as_floats(lhs_scale) * plain_scale).astype(like_rhs.dtype)
    return for_lhs, None, None, for_rhs, None, None, new_scale, new_history


quantized_dot.defvjp(_quantized_dot_forward, _quantized_dot_backward)


def _letters(dimension_numbers: DotDimensionNumbers, lhs_ndim: int, rhs_ndim: int) -> tuple[str, str, str]:
    """The axes of both operands and of the product of a `dot_general`, as in an einsum."""
    (lhs_summed, rhs_summed), (lhs_batch, rhs_batch) = dimension_numbers
    lhs = [chr(ord("a") + axis) for axis in range(lhs_ndim)]
    rhs = [chr(ord("A") + axis) for axis in range(rhs_ndim)]
    for i, j in zip((*lhs_batch, *lhs_summed), (*rhs_batch, *rhs_summed), strict=True):
        rhs[j] = lhs[i]
    batch = [lhs[i] for i in lhs_batch]
    kept_lhs = [lhs[i] for i in range(lhs_ndim) if i not in (*lhs_batch, *lhs_summed)]
    kept_rhs = [rhs[j] for j in range(rhs_ndim) if j not in (*rhs_batch, *rhs_summed)]
    return "".join(lhs), "".join(rhs), "".join([*batch, *kept_lhs, *kept_rhs])


def fp8_scaled_dot_general(
    lhs: jax.Array,
    rhs: jax.Array,
    dimension_numbers: DotDimensionNumbers,
    precision: PrecisionLike = None,
    preferred_element_type: Dtype | None = None,
    *,
    lhs_scale: jax.Array,
    rhs_scale: jax.Array,
    grad_scale: jax.Array,
    lhs_amax_history: jax.Array,
    rhs_amax_history: jax.Array,
    grad_amax_history: jax.Array,
    quantize_compute_type: Dtype = jnp.float32,
) -> jax.Array:
    """`lax.dot_general` in 8 bits: operands with four bits of exponent, gradients with five.

    Args:
        lhs: The left operand.
        rhs: The right operand.
        dimension_numbers: As in `lax.dot_general`.
        precision: Not used.
        preferred_element_type: The dtype of the sum; by default the one that both operands promote to.
        lhs_scale: The scale of the left operand.
        rhs_scale: The scale of the right operand.
        grad_scale: The scale of the gradient of the product.
        lhs_amax_history: The largest magnitudes of the last left operands.
        rhs_amax_history: The same for the right operands.
        grad_amax_history: The same for the gradients.
        quantize_compute_type: The dtype in which the operands are divided by their scales.

    Returns:
        The product, in `preferred_element_type`.
    """
    dtype = preferred_element_type or jnp.result_type(lhs, rhs)
    quantized_lhs: Any = in_q(quantize_compute_type, jnp.float8_e4m3fn, lhs, lhs_scale, lhs_amax_history)
    right: Any = in_q(quantize_compute_type, jnp.float8_e4m3fn, rhs, rhs_scale, rhs_amax_history)
    (small_lhs, lhs_scale), (small_rhs, rhs_scale) = quantized_lhs, right
    product = quantized_dot(
        lhs,
        small_lhs,
        lhs_scale,
        rhs,
        small_rhs,
        rhs_scale,
        grad_scale,
        grad_amax_history,
        dimension_numbers,
        dtype,
    )
    return out_dq(dtype, lhs_scale, rhs_scale, product)
