"""Where Modules meet captures: `Module.sow`, `Module.perturb` and methods, while a capture runs.

Everything goes to the engine as a site whose tag says what Module, type of Variable and name it is. When nobody looks,
every function here steps aside.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde import _jax
from sonde.core.context import looking
from sonde.core.sow import mark, mark_in_place
from sonde.nnx._kinds import NODE, VARIABLE, kind_of
from sonde.nnx._paths import ModuleScope, Place, carry, place_of, running

_NUMBERS = (bool, int, float, complex, np.generic)
__all__ = ["Sown", "carry", "labels", "observed", "perturb", "sow"]


@dataclasses.dataclass(frozen=True, slots=True)
class Sown:
    """What a site of a Module is.

    Attributes:
        type: The type of Variable it is recorded as.
        name: Its name.
        place: Where its Module stands, for every capture that runs.
        perturbs: Whether values may be added to it.
        reduce_fn: Combines what was recorded before with a value; None appends to a tuple.
        init_fn: Makes what `reduce_fn` is given first.
    """

    type: type
    name: str
    place: Place
    perturbs: bool = False
    reduce_fn: Callable[[Any, Any], Any] | None = dataclasses.field(default=None, compare=False)
    init_fn: Callable[[], Any] | None = dataclasses.field(default=None, compare=False)


def sow(
    module: Any,
    variable_type: type,
    name: str,
    value: Any,
    reduce_fn: Callable[[Any, Any], Any] | None,
    init_fn: Callable[[], Any],
) -> bool | None:
    """Records a value if a capture runs and wants it; None if none runs."""
    if looking() is None:
        return None
    if not any(request.wants(variable_type) for _, request in running.captures):
        return False
    place = place_of(module)
    tag = Sown(variable_type, name, place, reduce_fn=reduce_fn, init_fn=init_fn)
    with _jax.open_name(ModuleScope.at(place)):
        mark_in_place(value, name, tag=tag, depth=3)
    return True


def perturb(module: Any, name: str, value: Any, variable_type: type) -> Any | None:
    """The value to go on with if a capture runs; None if none does."""
    if looking() is None:
        return None
    if not any(request.wants(variable_type) for _, request in running.captures):
        return value
    place = place_of(module)
    value = jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, _NUMBERS) else x, value)
    with _jax.open_name(ModuleScope.at(place)):
        return mark(value, name, tag=Sown(variable_type, name, place, perturbs=True), depth=3)


def observed(name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    """A method that a capture can see; called once per method, when its class is made."""

    @functools.wraps(fn)
    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if looking() is None:
            return fn(self, *args, **kwargs)
        return _run_observed(name, fn, self, args, kwargs)

    return method


def _run_observed(name: str, fn: Callable[..., Any], module: Any, args: Any, kwargs: Any) -> Any:
    methods = running.methods
    # A method that calls the one it overrides is one call; one that calls itself is several.
    is_super_call = any(m is module and n == name and other is not fn for m, n, other in methods)
    place = place_of(module)
    scope = ModuleScope.at(place)
    methods.append((module, name, fn))
    try:
        with _jax.open_name(scope):
            result = fn(module, *args, **kwargs)
    finally:
        methods.pop()
    outputs = dict.fromkeys(request.outputs for _, request in running.captures)
    for variable_type in outputs:
        if variable_type is None or is_super_call:
            continue
        with _jax.open_name(scope):
            marked = mark(result, name, tag=Sown(variable_type, name, place), depth=1)
        if not _holds_objects(result):  # those must stay the objects they are
            result = marked
    return result


def _holds_objects(value: Any) -> bool:
    found = []

    def look(x: Any) -> bool:
        if kind_of(x) in (NODE, VARIABLE):
            found.append(x)
            return True
        return False

    jax.tree.leaves(value, is_leaf=look)
    return bool(found)


def labels(nodes: Sequence[Any]) -> Hashable:
    """What the running captures call these nodes: jitted calls that differ in it do not share a trace."""
    return tuple(map(place_of, nodes))
