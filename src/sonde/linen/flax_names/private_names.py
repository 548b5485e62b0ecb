"""Private names of Flax's `linen/module.py`, `transforms.py`, `linear.py` and `summary.py` that packages use."""

from __future__ import annotations

from collections.abc import Sequence

from jax import lax

from sonde.linen.modules.attach import UNSPECIFIED
from sonde.linen.modules.context import context
from sonde.linen.modules.methods import wrap
from sonde.linen.modules.table import module_table
from sonde.ops.conv import features_last

#: The state of the current thread; `_context.module_stack[-1]` is the module whose method is running.
_context = context
_unspecified_parent = UNSPECIFIED
_get_module_table = module_table
wrap_method_once = wrap


class _ObjectRepresentation:
    """For `isinstance` only: Flax's tables wrap values that are not arrays in it, Sonde's hold them unwrapped."""


def _conv_dimension_numbers(input_shape: Sequence[int]) -> lax.ConvDimensionNumbers:
    """The axes of input, kernel and output of a convolution, as `lax.conv_general_dilated` takes them."""
    return features_last(len(input_shape))
