"""Products in 8-bit floats for Linen's layers: passed as `dot_general_cls=`, or called in place of an einsum.

Their scales and histories are in the collection `_overwrite_with_gradient`, whose gradients are its next values
(`sonde.ops.fp8`). `TrainState.apply_gradients` knows about it.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
from jax.lax import DotDimensionNumbers, PrecisionLike

from sonde.linen.modules.methods import nowrap
from sonde.linen.modules.module import Module
from sonde.ops.dtypes import Dtype
from sonde.ops.fp8 import dot_general_with_precision, fp8_scaled_dot_general, in_qdq, out_qdq

OVERWRITE_WITH_GRADIENT = "_overwrite_with_gradient"
#: Whether arrays of `fp32_max_grad` can be made outside jit.
CAN_USE_EARRAY = True


class Fp8DotGeneralBase(Module):
    """The scales and histories of a product in 8 bits.

    Attributes:
        amax_history_length: How many calls a history holds.
        e4m3_dtype: The dtype of operands.
        e5m2_dtype: The dtype of gradients.
    """

    amax_history_length: int = 1024
    e4m3_dtype: Any = jnp.float8_e4m3fn
    e5m2_dtype: Any = jnp.float8_e5m2

    def setup(self) -> None:
        """Makes a scale and a history for both operands and for the gradient of the product."""
        for operand in ("input", "kernel", "output_grad"):
            history, scale = f"{operand}_amax_history", f"{operand}_scale"
            history_shape, scale_shape = (self.amax_history_length,), (1,)
            setattr(
                self, history, self.variable(OVERWRITE_WITH_GRADIENT, history, jnp.zeros, history_shape, jnp.float32)
            )
            setattr(self, scale, self.variable(OVERWRITE_WITH_GRADIENT, scale, jnp.ones, scale_shape, jnp.float32))

    @nowrap
    def _of(self, operand: str) -> tuple[jax.Array, jax.Array]:
        return getattr(self, f"{operand}_scale").value, getattr(self, f"{operand}_amax_history").value


class Fp8DotGeneralOp(Fp8DotGeneralBase):
    """`lax.dot_general` on operands that are rounded to 8 bits, in the dtype of the kernel. Use `Fp8DotGeneral`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self) is Fp8DotGeneralOp:
            warnings.warn(
                "Fp8DotGeneralOp rounds operands but multiplies them in their own dtype; use Fp8DotGeneral or "
                "Fp8Einsum, which multiply 8-bit arrays.",
                DeprecationWarning,
                stacklevel=2,
            )

    def __call__(self, *args: Any, **kwargs: Any) -> jax.Array:
        """The product, for the arguments of `lax.dot_general`."""
        lhs, rhs, dimension_numbers = args[:3]
        dtype = rhs.dtype
        lhs = in_qdq(dtype, self.e4m3_dtype, jnp.asarray(lhs, dtype), *self._of("input"))
        rhs = in_qdq(dtype, self.e4m3_dtype, rhs, *self._of("kernel"))
        product = dot_general_with_precision(lhs, rhs, dimension_numbers)
        return out_qdq(dtype, self.e5m2_dtype, product, *self._of("output_grad"))


class NANOOFp8DotGeneralOp(Fp8DotGeneralOp):
    """`Fp8DotGeneralOp` with AMD's 8-bit floats, which have no infinities."""

    e4m3_dtype: Any = jnp.float8_e4m3fnuz
    e5m2_dtype: Any = jnp.float8_e5m2fnuz


class Fp8DirectDotGeneralOp(Fp8DotGeneralBase):
    """`lax.dot_general` of 8-bit arrays, as the `dot_general_cls` of a layer.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from sonde import linen as nn
        >>> model = nn.Dense(4, dot_general_cls=nn.Fp8DotGeneral)
        >>> variables = model.init(jax.random.key(0), jnp.ones((2, 3)))
        >>> sorted(variables)
        ['_overwrite_with_gradient', 'params']
    """

    def __call__(self, *args: Any, **kwargs: Any) -> jax.Array:
        """The product, for the arguments of `lax.dot_general`."""
        lhs, rhs, dimension_numbers = args[:3]
        lhs = jnp.asarray(lhs, rhs.dtype)
        return scaled_product(self, lhs, rhs, dimension_numbers, preferred_element_type=rhs.dtype)


Fp8DotGeneral = Fp8DirectDotGeneralOp


class Fp8Einsum(Fp8DotGeneralBase):
    """`jnp.einsum` of two arrays, in 8 bits.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from sonde import linen as nn
        >>> a, b = jnp.ones((2, 3)), jnp.ones((3, 4))
        >>> y, variables = nn.Fp8Einsum().init_with_output(jax.random.key(0), "mk,kn->mn", a, b)
        >>> y.shape
        (2, 4)
    """

    def __call__(
        self,
        eqn: str,
        lhs: jax.Array,
        rhs: jax.Array,
        precision: PrecisionLike = None,
        preferred_element_type: Dtype | None = None,
    ) -> jax.Array:
        """The product, in the dtype of the second array."""
        return jnp.einsum(
            eqn,
            jnp.asarray(lhs, rhs.dtype),
            rhs,
            precision=precision,
            preferred_element_type=preferred_element_type,
            _dot_general=functools.partial(scaled_product, self),
        )


def scaled_product(
    module: Fp8DotGeneralBase,
    lhs: jax.Array,
    rhs: jax.Array,
    dimension_numbers: DotDimensionNumbers,
    precision: PrecisionLike = None,
    preferred_element_type: Dtype | None = None,
    **kwargs: Any,
) -> jax.Array:
    """The product with the scales and histories of a module."""
    (lhs_scale, lhs_history), (rhs_scale, rhs_history), (grad_scale, grad_history) = (
        module._of(operand) for operand in ("input", "kernel", "output_grad")
    )
    return fp8_scaled_dot_general(
        lhs,
        rhs,
        dimension_numbers,
        preferred_element_type=preferred_element_type,
        lhs_scale=lhs_scale,
        rhs_scale=rhs_scale,
        grad_scale=grad_scale,
        lhs_amax_history=lhs_history,
        rhs_amax_history=rhs_history,
        grad_amax_history=grad_history,
        quantize_compute_type=lhs.dtype,
    )
