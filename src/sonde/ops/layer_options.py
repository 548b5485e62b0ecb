"""Which attributes of a layer are options of the operation that it calls; layers of both faces have them.

An attribute and the option that it sets have one name, so a layer is bound to its operation by a table. What only one
face has, or has in another form, that face adds.
"""

from __future__ import annotations

from typing import Any

DENSE = ("dtype", "precision", "dot_general", "promote_dtype")
EINSUM = ("dtype", "precision", "preferred_element_type", "promote_dtype")
EMBED = ("dtype", "promote_dtype")
_WINDOW = ("strides", "padding", "kernel_dilation", "mask", "dtype", "precision", "promote_dtype")
CONV = (*_WINDOW, "input_dilation", "feature_group_count", "conv_general_dilated")
CONV_LOCAL = (*_WINDOW, "input_dilation")
CONV_TRANSPOSE = (*_WINDOW, "transpose_kernel", "preferred_element_type")
NORM = ("epsilon", "dtype", "axis_name", "axis_index_groups", "use_fast_variance")
BATCH_NORM = (*NORM, "axis", "momentum")
LAYER_NORM = (*NORM, "reduction_axes", "feature_axes")  # RMSNorm's too
GROUP_NORM = (*NORM, "reduction_axes")
INSTANCE_NORM = (*NORM, "feature_axes")


def options_of(layer: object, names: tuple[str, ...]) -> dict[str, Any]:
    """The keyword arguments of an operation: the attributes of a layer that a table names."""
    return {name: getattr(layer, name) for name in names}
