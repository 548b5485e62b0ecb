"""Linear maps: over the last axis, over any axes with batch axes, by an einsum, and of low rank.

Kernels are stored as (batch axes, input axes, output axes), so that a kernel with one input and one output
axis is the usual matrix `inputs @ kernel`. A bias has the shape (batch axes, output axes).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import PrecisionLike

from sonde._array_text import describe
from sonde.errors import LayerInputError
from sonde.ops.checks import expect_rank, expect_size
from sonde.ops.dtypes import Dtype, PromoteDtype, promote_all, promote_dtype
from sonde.ops.sharding import OutSharding

DotGeneral = Callable[..., jax.Array]
"""A replacement for `jax.lax.dot_general`, for quantized products and the like."""


def given(**options: Any) -> dict[str, Any]:
    """The options that are set: a user's replacement of a JAX function need not accept the others."""
    return {name: value for name, value in options.items() if value is not None}


def dense(
    inputs: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None = None,
    *,
    dtype: Dtype | None = None,
    precision: PrecisionLike = None,
    preferred_element_type: Dtype | None = None,
    dot_general: DotGeneral = lax.dot_general,
    promote_dtype: PromoteDtype | None = promote_dtype,
    out_sharding: OutSharding | None = None,
) -> jax.Array:
    """Multiplies the last axis by a matrix and adds a bias.

    `inputs` are `(..., in)`, `kernel` is `(in, out)`, `bias` is `(out,)` or None; the result is `(..., out)`. The
    options are those of `nnx.Linear`.

    Raises:
        LayerInputError: The last axis of `inputs` is not `in` long.

    Example:
        >>> import jax.numpy as jnp
        >>> dense(jnp.ones((2, 3)), jnp.ones((3, 4)), jnp.ones(4)).shape
        (2, 4)
    """
    expect_size(jnp.asarray(inputs), axis=-1, size=kernel.shape[0], argument="inputs", meaning="input features")
    inputs, kernel, bias = promote_all(promote_dtype, (inputs, kernel, bias), dtype)
    y = dot_general(
        inputs,
        kernel,
        (((inputs.ndim - 1,), (0,)), ((), ())),
        precision=precision,
        **given(preferred_element_type=preferred_element_type, out_sharding=out_sharding),
    )
    return y if bias is None else y + jnp.reshape(bias, (1,) * (y.ndim - 1) + (-1,))


def dense_general(
    inputs: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None = None,
    *,
    axis: Sequence[int] = (-1,),
    batch_axis: Sequence[int] = (),
    dtype: Dtype | None = None,
    precision: PrecisionLike = None,
    preferred_element_type: Dtype | None = None,
    dot_general: DotGeneral = lax.dot_general,
    promote_dtype: PromoteDtype | None = promote_dtype,
    out_sharding: OutSharding | None = None,
) -> jax.Array:
    """Contracts any axes of the inputs with a kernel, with one kernel per position of the batch axes.

    `kernel` is `(batch..., in..., out...)`, `bias` is `(batch..., out...)` or None; the result has the axes (batch,
    remaining axes of `inputs`, out). `axis` are the contracted axes of the inputs: whatever their order here, the
    kernel's axes have the order of the inputs. `batch_axis` are those with a separate kernel at every position. The
    other options are those of `nnx.LinearGeneral`.

    Raises:
        LayerInputError: An axis of `inputs` is missing or not as long as the kernel's.

    Example:
        >>> import jax.numpy as jnp
        >>> dense_general(jnp.ones((2, 5, 3)), jnp.ones((5, 3, 4)), axis=(1, 2)).shape
        (2, 4)
    """
    inputs = jnp.asarray(inputs)
    n_batch, n_in = len(batch_axis), len(axis)
    axis = sorted(axis, key=lambda ax: ax % inputs.ndim)
    for position, ax in enumerate((*batch_axis, *axis)):
        meaning = "input features" if position >= n_batch else "batch elements"
        expect_size(inputs, axis=ax, size=kernel.shape[position], argument="inputs", meaning=meaning)
    inputs, kernel, bias = promote_all(promote_dtype, (inputs, kernel, bias), dtype)
    contract = tuple(ax % inputs.ndim for ax in axis)
    batch = tuple(ax % inputs.ndim for ax in batch_axis)
    y = dot_general(
        inputs,
        kernel,
        ((contract, tuple(range(n_batch, n_batch + n_in))), (batch, tuple(range(n_batch)))),
        precision=precision,
        **given(preferred_element_type=preferred_element_type, out_sharding=out_sharding),
    )
    if bias is None:
        return y
    n_left = inputs.ndim - n_batch - n_in
    return y + jnp.reshape(bias, bias.shape[:n_batch] + (1,) * n_left + bias.shape[n_batch:])


def einsum(
    equation: str,
    inputs: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None = None,
    *,
    dtype: Dtype | None = None,
    precision: PrecisionLike = None,
    preferred_element_type: Dtype | None = None,
    einsum_op: Callable[..., jax.Array] = jnp.einsum,
    promote_dtype: PromoteDtype | None = promote_dtype,
    out_sharding: OutSharding | None = None,
) -> jax.Array:
    """Multiplies inputs and kernel by an einsum equation and adds a bias along the kernel's axes.

    The equation has two operands, the inputs first: `"...d,dhk->...hk"`. `bias` is None, or has those axes of the
    kernel that are in the result, in the result's order. The options are those of `nnx.Einsum`.

    Raises:
        LayerInputError: The equation does not have two operands, or does not fit the arrays.

    Example:
        >>> import jax.numpy as jnp
        >>> einsum("ntd,dhk->nthk", jnp.ones((2, 5, 3)), jnp.ones((3, 4, 6)), jnp.ones((4, 6))).shape
        (2, 5, 4, 6)
    """
    parsed = _parse(equation)
    inputs, kernel, bias = promote_all(promote_dtype, (inputs, kernel, bias), dtype)
    _check_operands(equation, parsed, inputs, kernel)
    y = einsum_op(
        equation,
        inputs,
        kernel,
        precision=precision,
        **given(preferred_element_type=preferred_element_type, out_sharding=out_sharding),
    )
    if bias is None:
        return y
    sizes = _kernel_sizes(equation, parsed, kernel.shape)
    return y + jnp.reshape(bias, tuple(sizes.get(name, 1) for name in _axis_names(parsed[2], y.ndim)))


def low_rank(x: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
    """Multiplies by a matrix of low rank, given as two factors.

    `x` is `(..., in)`; the factors are `(in, rank)` and `(rank, out)`; the result is `(..., out)`.

    Raises:
        LayerInputError: The last axis of `x` is not `in` long.

    Example:
        >>> import jax.numpy as jnp
        >>> low_rank(jnp.ones((2, 3)), jnp.ones((3, 1)), jnp.ones((1, 4))).shape
        (2, 4)
    """
    expect_size(jnp.asarray(x), axis=-1, size=a.shape[0], argument="x", meaning="input features")
    return x @ a @ b


def einsum_bias_shape(equation: str, kernel_shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of a bias for `einsum`: those axes of the kernel that are in the result, in the result's order.

    Example:
        >>> einsum_bias_shape("ntd,dhk->nkth", (3, 4, 6))
        (6, 4)
        >>> einsum_bias_shape("...ab,bc...->...ac", (4, 5, 3))
        (3, 5)
    """
    parsed = _parse(equation)
    sizes = _kernel_sizes(equation, parsed, kernel_shape)
    # If the result's "..." has more axes than the kernel's, the bias lacks the extra ones.
    n_dots = sum(isinstance(name, int) for name in sizes)
    return tuple(sizes[name] for name in _axis_names(parsed[2], len(_letters(parsed[2])) + n_dots) if name in sizes)


def _parse(equation: str) -> tuple[str, str, str]:
    """Inputs, kernel and result of an equation, without spaces."""
    operands, arrow, result = equation.replace(" ", "").partition("->")
    if not arrow:
        raise LayerInputError(
            f"the einsum equation {equation!r} has no '->' before the result; write it as in 'nd,dk->nk'."
        )
    first, comma, second = operands.partition(",")
    if not comma or "," in second:
        raise LayerInputError(
            f"the einsum equation {equation!r} must have two operands, the inputs and the kernel, such as 'nd,dk->nk'."
        )
    return first, second, result


def _check_operands(equation: str, parsed: tuple[str, str, str], inputs: jax.Array, kernel: jax.Array) -> None:
    kernel_sizes = _kernel_sizes(equation, parsed, kernel.shape)
    letters = _letters(parsed[0])
    if "..." in parsed[0]:
        expect_rank(inputs, least=len(letters), argument="inputs", meaning=f"for {equation!r}")
    elif inputs.ndim != len(letters):
        raise LayerInputError(
            f"`inputs` must have {len(letters)} axes for the einsum equation {equation!r}, got {describe(inputs)}."
        )
    before, _, after = parsed[0].partition("...")
    named = [*enumerate(before), *((i - len(after), letter) for i, letter in enumerate(after))]
    for axis, letter in named:
        if letter in kernel_sizes and inputs.shape[axis] != 1 and kernel_sizes[letter] != 1:
            expect_size(
                inputs,
                axis=axis,
                size=kernel_sizes[letter],
                argument="inputs",
                meaning=f"elements for letter {letter!r} of {equation!r}",
            )


def _letters(operand: str) -> str:
    return operand.replace("...", "")


def _axis_names(operand: str, ndim: int) -> list[str | int]:
    """The name of each axis of an operand: its letter, or its index in the `...` counted from the end, -1 last."""
    head, dots, tail = operand.partition("...")
    n_dots = ndim - len(head + tail) if dots else 0
    return [*head, *range(-n_dots, 0), *tail]


def _kernel_sizes(equation: str, parsed: tuple[str, str, str], kernel_shape: Sequence[int]) -> dict[str | int, int]:
    names = _axis_names(parsed[1], len(kernel_shape))
    if len(names) != len(kernel_shape) or len(_letters(parsed[1])) > len(kernel_shape):
        raise LayerInputError(
            f"the kernel has shape {tuple(kernel_shape)}, which does not fit the {len(_letters(parsed[1]))} letters "
            f"{parsed[1]!r} of the einsum equation {equation!r}."
        )
    return dict(zip(names, kernel_shape))
