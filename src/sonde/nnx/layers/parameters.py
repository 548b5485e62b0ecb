"""Makes the parameters of a layer, and chooses between options of the constructor and of the call."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from sonde.errors import LayerInputError
from sonde.nnx.modules.attribute_status import data
from sonde.nnx.modules.module import Module
from sonde.nnx.rng.rngs import Rngs, RngStream
from sonde.nnx.variable.kinds import Param
from sonde.nnx.variable.metadata import VariableMetadata
from sonde.nnx.variable.variable import Variable
from sonde.ops.default_initializers import SAME_WHEN_COMPILED, compiled_draw
from sonde.ops.dtypes import Dtype

Metadata = Mapping[str, Any]
Init = Callable[..., Any]
"""An initializer, `init(key, shape, dtype)`; its value may be wrapped in a `VariableMetadata`."""
NO_METADATA: Metadata = {}


def new_param(
    layer: Module,
    rngs: Rngs,
    init: Init,
    shape: Sequence[int],
    dtype: Dtype,
    metadata: Metadata,
    *,
    kind: type[Variable[Any]] = Param,
    drawn_as: Sequence[int] | None = None,
) -> Variable[Any]:
    """A parameter drawn from the `params` stream.

    Args:
        layer: The layer it is for, named in errors.
        rngs: The random streams.
        init: The initializer.
        shape: The shape of the parameter.
        dtype: The dtype of the parameter.
        metadata: For the Variable.
        kind: The type of the Variable.
        drawn_as: The shape the initializer draws, if it differs from `shape`.

    Raises:
        LayerInputError: `rngs` is not an `Rngs`.
    """
    if not isinstance(rngs, Rngs):
        raise LayerInputError(
            f"`rngs` must be an nnx.Rngs to draw initial parameters from, got {rngs!r}. Write "
            f"{type(layer).__name__}(..., rngs=nnx.Rngs(0)).",
            place=type(layer).__name__,
        )
    # Drawn in the shape that the initializer should see: fan-in and fan-out depend on it.
    value = _drawn(init, rngs.params, tuple(shape if drawn_as is None else drawn_as), dtype)
    if drawn_as is not None:
        # A wrapped initializer returns its value wrapped in metadata.
        if isinstance(value, VariableMetadata):
            value = dataclasses.replace(value, raw_value=jnp.reshape(value.raw_value, tuple(shape)))
        else:
            value = jnp.reshape(value, tuple(shape))
    return kind(value, **metadata)


def _drawn(init: Init, stream: RngStream, shape: tuple[int, ...], dtype: Dtype) -> Any:
    # Others differ in the last digit when they are compiled, and initial values must equal Flax's.
    if init not in SAME_WHEN_COMPILED or stream.key.shape:
        return init(stream(), shape, dtype)
    value, count = compiled_draw(init, shape, jnp.dtype(dtype))(stream.key.get_value(), stream.count.get_value())
    stream.count.set_value(count)
    return value


def optional_param(use: bool, layer: Module, *args: Any, **kwargs: Any) -> Any:
    """The same as `new_param`, or an empty attribute if `use` is False."""
    return new_param(layer, *args, **kwargs) if use else data(None)


def keep_options(layer: Module, arguments: Mapping[str, Any]) -> None:
    """Stores the arguments of a layer's constructor as attributes of the same names, in their order.

    Initializers, metadata and random streams are not stored: they are used once, to draw the parameters.

    Args:
        layer: The layer.
        arguments: The `locals()` of its constructor.
    """
    for name, value in arguments.items():
        if name not in ("self", "rngs") and not name.endswith(("_init", "_metadata")):
            setattr(layer, name, value)


def value_of(variable: Variable[Any] | None) -> Any:
    """The value of a parameter that may be absent."""
    return None if variable is None else variable[...]


def chosen(layer: Module, option: str, in_call: bool | None, in_constructor: bool | None) -> bool:
    """The value of an option: the one from the call, or else the one from the constructor.

    Raises:
        ValueError: Neither gives one.
    """
    if in_call is not None:
        return in_call
    if in_constructor is not None:
        return in_constructor
    name, value = type(layer).__name__, f"{option}=True/False"
    view = f", or for a whole model, nnx.view(model, {value})" if hasattr(layer, "set_view") else ""
    raise ValueError(
        f"{name}: `{option}` is not set. Set it in the constructor, {name}(..., {value}), or in the call, "
        f"layer(x, {value}){view}."
    )
