"""What Modules sow and perturb while an `nnx.capture` runs, collected by type of Variable, Module and name.

`nnx.capture` collects when the run has ended; `Module.__captures__` asks in the middle of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from sonde import _jax
from sonde.core import (
    Call,
    Editing,
    Recording,
    Supplied,
    Where,
    added_at,
    call_stacks,
    calls_of,
    record_of,
    unstarred,
)
from sonde.nnx.modules.module_sites import Sown, noted
from sonde.nnx.modules.pytree import Pytree
from sonde.nnx.variable.variable import Variable

Key = tuple[str, str]  # the path of a Module, and a name
Values = dict[type, dict[Key, Any]]


class ModuleRecording(Recording):
    """Records values that were sown as one of the given types."""

    def __init__(self, types: tuple[type, ...], initial: Values, *, grads: bool) -> None:
        super().__init__((), grads=grads)
        # Compiled programs are kept by this key, and other types record other sites.
        self.key = (self.key, types)
        self.types = types
        self.given = initial

    def so_far(self) -> Values:
        """What was recorded so far."""
        return collected(calls_of(self), self.types, self.given, perturbed_to_zeros)

    def wants(self, where: Where) -> bool:
        """Whether the site belongs to a Module of the captured model and has one of the types."""
        tag = where.marked.tag
        if not isinstance(tag, Sown) or tag.type not in self.types or not tag.known[self.depth - 1]:
            return False
        return super().wants(where)


@jax.tree_util.register_pytree_node_class
class GivenValues:
    """The rule that adds given values where Modules call `perturb`. Values that are not used are no error.

    Attributes:
        values: The values.
    """

    def __init__(self, values: Values) -> None:
        self.values = values

    def tree_flatten(self) -> tuple[Any, Any]:
        """The arrays, and where they belong."""
        keys = [(t, key) for t, values in self.values.items() for key in values]
        return [self.values[t][key] for t, key in keys], tuple(keys)

    @classmethod
    def tree_unflatten(cls, keys: Iterable[tuple[type, Key]], children: Iterable[Any]) -> GivenValues:
        """The rule with these arrays."""
        values: Values = {}
        for (t, key), value in zip(keys, children):
            values.setdefault(t, {})[key] = value
        return cls(values)

    def __call__(self, arrays: Sequence[Any], where: Where) -> Supplied | None:
        """The value to add at a site."""
        tag = where.site.tag
        if not isinstance(tag, Sown) or not tag.perturbs or not tag.known[where.depth - 1]:
            return None
        value = self.values.get(tag.type, {}).get(_key(where.path, tag))
        return None if value is None else added_at(value, arrays, where)


def captures_of(module: Pytree) -> tuple[Variable[Any], ...] | None:
    """What the innermost running `nnx.capture` has recorded in a Module so far.

    There is one Variable for each type that is recorded or has initial values; it holds a dict from names to values.
    None if no `nnx.capture` runs, or the Module is not in its model.
    """
    values_by_type: dict[type, dict[str, Any]] = {}
    root: Any = None
    for stack in reversed(call_stacks()):
        handler = stack.handler
        if isinstance(handler, ModuleRecording):
            so_far = handler.so_far()
        elif isinstance(handler, Editing) and isinstance(rule := handler.rule, GivenValues):
            so_far = rule.values
        else:
            continue
        # An outer capture of another model has its own paths, which must not be mixed with these.
        if values_by_type and stack.root is not root:
            continue
        place, root = stack.place_of(module), stack.root
        if not place.known:
            return None
        path = stack.absolute(place)
        for t, values in so_far.items():
            of_type = values_by_type.setdefault(t, {})
            of_type.update({name: value for (text, name), value in values.items() if text == path})
        if isinstance(handler, ModuleRecording):
            for tag, value in noted(stack, module):
                of_type = values_by_type.setdefault(tag.type, {})
                if tag.perturbs:
                    of_type.setdefault(tag.name, jax.tree.map(jax.numpy.zeros_like, value))
                else:
                    of_type[tag.name] = _reduced(of_type.get(tag.name), tag, [value])
            recorded = {t: values_by_type[t] for t in handler.types}
            return tuple(t(values) for t, values in (recorded | values_by_type).items())
    return tuple(t(values) for t, values in values_by_type.items()) or None


def value_of_call(call: Call) -> Any:
    """The value that a call recorded, with the axes of loops and maps in front."""
    item = call.item
    return record_of(call).value if item.view.axes else item.site.rebuild(item.leaves)


def gradient_of_call(call: Call) -> Any:
    """The gradient of that value; None if no backward pass reached it."""
    grads = record_of(call).grads
    return grads[0] if grads else None


def perturbed_to_zeros(call: Call, tag: Sown) -> Any:
    """What `nnx.capture` returns for a call: the value that was sown, or zeros where a value may be added."""
    value = value_of_call(call)
    return jax.tree.map(jax.numpy.zeros_like, value) if tag.perturbs else value


def collected(
    calls: list[Call], types: tuple[type, ...], initial: Values, value_of: Callable[[Call, Sown], Any]
) -> Values:
    """What was recorded, by type, Module and name; in program order."""
    values_by_type: Values = {t: {} for t in types}
    for call in calls:
        item = call.item
        tag: Any = item.site.tag  # a `Sown`: nothing else was recorded
        if not item.view.is_value or _is_not_taken(item.extras.get("taken")):
            continue
        value = value_of(call, tag)
        key = _key(item.path, tag)
        values = values_by_type[tag.type]
        before = values.get(key, initial.get(tag.type, {}).get(key))
        if tag.perturbs and value_of is perturbed_to_zeros:
            values[key] = value if before is None else before
        else:
            n_loops = sum(axis.is_loop for axis in item.view.axes)
            values[key] = _reduced(before, tag, _iterations(value, n_loops) if tag.reduce_fn else [value])
    return values_by_type


def _reduced(before: Any, tag: Sown, values: Iterable[Any]) -> Any:
    """What a Module sowed under a name before, combined with further values."""
    if tag.reduce_fn is None:
        return (*(() if before is None else before), *values)
    assert tag.init_fn is not None
    return functools.reduce(tag.reduce_fn, values, tag.init_fn() if before is None else before)


def _key(path: str, tag: Sown) -> Key:
    """The path of the Module that sowed a value, and the value's name."""
    return unstarred(path[: len(path) - len(tag.name)].rstrip("/")), tag.name


def _is_not_taken(taken: jax.Array | None) -> bool:
    return taken is not None and not isinstance(taken, _jax.Tracer) and not np.any(taken)


def _iterations(value: object, n_loops: int) -> Iterator[Any]:
    """The value of each iteration, in the order in which they ran."""
    arrays = jax.tree.leaves(value)
    if not n_loops or not arrays:
        yield value
        return
    for index in np.ndindex(arrays[0].shape[:n_loops]):
        yield jax.tree.map(lambda x, index=index: x[index], value)
