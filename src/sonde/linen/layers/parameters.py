"""The parameters that most layers have, and their options in the form that `sonde.ops` takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax import lax

from sonde.linen.dtypes import of_tuple
from sonde.linen.modules.module import Module
from sonde.ops import layer_options

_PRODUCTS = {"dot_general": lax.dot_general, "conv_general_dilated": lax.conv_general_dilated}


def options_of(layer: Module, names: tuple[str, ...]) -> dict[str, Any]:
    """The options that a table of `sonde.ops.layer_options` names.

    A product is made by the field `..._cls` if that is given; else it is the field's own value, or else JAX's function.
    """
    options = layer_options.options_of(layer, names)
    options["promote_dtype"] = of_tuple(options["promote_dtype"])
    for product, default in _PRODUCTS.items():
        if product in options:
            make = getattr(layer, f"{product}_cls")
            if make is not None:
                options[product] = make()
            elif options[product] is None:
                options[product] = default
    return options


def kernel_and_bias(
    module: Any, shape: Sequence[int], bias_shape: Callable[[], Sequence[int]] | Sequence[int]
) -> tuple[Any, Any]:
    """The kernel of a layer, and its bias; None if it has no bias.

    Args:
        module: The layer, with the fields `kernel_init`, `bias_init`, `use_bias` and `param_dtype`.
        shape: The shape of the kernel.
        bias_shape: The shape of the bias, or a function that returns it, which is called only if there is a bias.
    """
    kernel = module.param("kernel", module.kernel_init, tuple(shape), module.param_dtype)
    if not module.use_bias:
        return kernel, None
    of_bias = bias_shape() if callable(bias_shape) else bias_shape
    return kernel, module.param("bias", module.bias_init, tuple(of_bias), module.param_dtype)


def scale_and_bias(module: Any, shape: Sequence[int], *, use_bias: bool) -> tuple[Any, Any]:
    """The scale and the bias of a normalizing layer; None for each that it does not have."""
    scale = module.param("scale", module.scale_init, tuple(shape), module.param_dtype) if module.use_scale else None
    bias = module.param("bias", module.bias_init, tuple(shape), module.param_dtype) if use_bias else None
    return scale, bias
