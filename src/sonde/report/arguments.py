"""The arrays that a program was given, with their statistics: the weights of models, and the inputs.

Findings about weights compare a layer with the others of its family; findings about inputs look at their scale. Which
arrays are weights is told by where they are: inside a module, or in an argument that holds several arrays.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde import _jax
from sonde.core import InsideRequest, module_kind

_FEW = 3  # arrays in an argument: more are parameters, not a batch
_ON_HOST = 1 << 20  # larger arrays are reduced where they are
_STATE = ("opt_state", "mu", "nu", "momentum", "ema", "batch_stats", "moving_mean", "moving_variance", "running_mean")
_VARIABLE = ("value", "raw_value", "_value")  # what libraries call the array in a variable: it names no layer


@dataclasses.dataclass(frozen=True, slots=True)
class Argument:
    """An array of floating point among the arguments.

    Attributes:
        path: The attributes that lead to it from its model, as in `blocks/2/up/kernel`; the name of the argument, for
            an input.
        shape: Its shape.
        is_weight: Whether it is a parameter of a model, and not an input.
        rms: The root of the mean square of its finite elements.
        low: The smallest of them.
        high: The largest of them.
        mean: Their mean.
        nonfinite: How many elements are NaN or infinite.
        digest: Equal for equal arrays.
        feature_rms: The rms of every index of the last axis, for inputs with several examples; None for others.
        of_whole_numbers: Whether all elements are whole numbers.
    """

    path: str
    shape: tuple[int, ...]
    is_weight: bool
    rms: float
    low: float
    high: float
    mean: float
    nonfinite: int
    digest: str
    feature_rms: np.ndarray | None
    of_whole_numbers: bool

    @property
    def size(self) -> int:
        """How many elements there are."""
        return int(np.prod(self.shape))


def examined_arguments(
    f: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], inside: InsideRequest | None
) -> tuple[Argument, ...]:
    """The arrays of floating point that a program was given, each once.

    Args:
        f: The function. If it is a model itself, or a method of one, its arrays are weights.
        args: Its arguments.
        kwargs: Its keyword arguments.
        inside: The models that were asked for; their own names for their weights are used.
    """
    models = [] if inside is None else inside.known_models()
    names = {id(array): path for model in models for path, array in _named_by_library(model)}
    arrays_by_id: dict[int, tuple[str, bool, Any]] = {}
    owner = getattr(f, "__self__", f)
    if not inspect.ismodule(owner) and module_kind(owner) is not None:
        for path, array in _arrays(owner):
            arrays_by_id.setdefault(id(array), (path, True, array))
    for name, value in (*zip(_parameter_names(f, len(args)), args), *kwargs.items()):
        arrays = list(_arrays(value))
        is_model = module_kind(value) is not None or len(arrays) > _FEW or _has_weights(arrays)
        for path, array in arrays:
            path = names.get(id(array), path if is_model else "/".join(filter(None, (name, path))))
            arrays_by_id.setdefault(id(array), (path, is_model, array))
    for model in models:
        for path, array in (*_named_by_library(model), *_arrays(model)):
            arrays_by_id.setdefault(id(array), (path, True, array))
    return tuple(
        _described(path, is_weight, array)
        for path, is_weight, array in arrays_by_id.values()
        if not any(part in _STATE for part in path.split("/"))
    )


def _parameter_names(f: Callable[..., Any], count: int) -> list[str]:
    """The names of the positional parameters; numbers for those without."""
    try:
        parameters = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):
        parameters = ()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in parameters if p.kind in kinds][:count]
    return [*names, *(f"arg{i}" for i in range(len(names), count))]


def _arrays(value: Any) -> Iterator[tuple[str, Any]]:
    """The concrete arrays of floating point in a pytree, with their paths."""
    try:
        leaves = jax.tree_util.tree_flatten_with_path(value)[0]
    except Exception:  # an object that JAX cannot take apart now: its arrays are not examined
        return
    for keys, leaf in leaves:
        if _is_examined(leaf):
            parts = [jax.tree_util.keystr((key,), simple=True) for key in keys]
            first = 1 if parts[:1] == ["params"] else 0  # the collection of linen
            last = -1 if len(parts) > 1 and parts[-1] in _VARIABLE else None
            yield "/".join(parts[first:last]), leaf


def _is_examined(leaf: Any) -> bool:
    """Whether a leaf is an array of floating point whose numbers this process has."""
    if not isinstance(leaf, (jax.Array, np.ndarray)) or isinstance(leaf, _jax.Tracer) or not leaf.size:
        return False
    return jnp.issubdtype(leaf.dtype, jnp.floating) and getattr(leaf, "is_fully_addressable", True)


def _named_by_library(model: Any) -> Iterator[tuple[str, Any]]:
    """The weights of a model that is no pytree and lists its own variables, as those of Keras do."""
    weights = getattr(model, "weights", None)
    if not isinstance(weights, (list, tuple)):
        return
    for variable in weights:
        path, value = getattr(variable, "path", None), getattr(variable, "value", None)
        if isinstance(path, str) and isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jnp.floating):
            yield path.partition("/")[2] if path.startswith(f"{getattr(model, 'name', '')}/") else path, value


def _has_weights(arrays: Sequence[tuple[str, Any]]) -> bool:
    """Whether a few arrays are parameters: matrices of different shapes, where a batch shares its first axis."""
    return len(arrays) > 1 and len({x.shape[:1] for _, x in arrays}) > 1 and any(x.ndim > 1 for _, x in arrays)


def _described(path: str, is_weight: bool, array: Any) -> Argument:
    on_host = array.size <= _ON_HOST
    whole = np.asarray(array) if on_host else array
    with_features = not is_weight and whole.ndim == 2 and whole.shape[0] > 1
    numbers, features = jax.device_get(
        _statistics(np.asarray(whole, np.float64), np, with_features)
        if on_host
        else _compiled_statistics(whole, with_features)
    )
    rms, low, high, mean, nonfinite, is_whole = map(float, numbers)
    if on_host:
        digest = hashlib.sha1(np.ascontiguousarray(whole).tobytes()).hexdigest()
    else:  # equal arrays have equal statistics; unequal ones of this size practically never do
        digest = f"{rms!r} {low!r} {high!r} {mean!r}"
    return Argument(
        path, tuple(array.shape), is_weight, rms, low, high, mean, int(nonfinite), digest, features, bool(is_whole)
    )


def _statistics(x: Any, xp: Any, with_features: bool) -> tuple[Any, Any]:
    finite = xp.isfinite(x)
    finite_values = xp.where(finite, x, 0)
    count = xp.maximum(xp.sum(finite), 1)
    # Scaled by the largest, so that squares stay in range.
    peak = xp.max(xp.abs(finite_values))
    scale = xp.where(peak > 0, peak, 1)
    squares = (finite_values / scale) ** 2
    rms = xp.sqrt(xp.sum(squares) / count) * scale
    low, high = xp.min(xp.where(finite, x, np.inf)), xp.max(xp.where(finite, x, -np.inf))
    mean = xp.sum(finite_values / scale) / count * scale
    is_whole = xp.all(finite_values == xp.round(finite_values))
    features = xp.sqrt(xp.mean(squares, 0)) * scale if with_features else None
    return (rms, low, high, mean, x.size - xp.sum(finite), is_whole), features


@functools.partial(jax.jit, static_argnums=1)
def _compiled_statistics(x: Any, with_features: bool) -> tuple[Any, Any]:
    return _statistics(x.astype(jnp.float32), jnp, with_features)
