"""Where Modules meet captures: `Module.sow`, `Module.perturb` and methods, while a capture runs.

Everything goes to the engine as a site whose tag has the type of Variable and the name; `sonde.core.modules.call_stack`
finds the path of the Module. When no capture runs, the functions here do nothing.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from sonde import _jax
from sonde.core import (
    SESSIONS,
    CallStack,
    ModuleKind,
    Origin,
    at_module,
    call_stacks,
    capture_state,
    captures_run,
    code_of,
    mark,
    mark_arrays,
    mark_in_place,
    register_modules,
    register_no_modules,
    run_method,
)
from sonde.nnx.modules.pytree import Pytree, set_origin
from sonde.nnx.states.state import FlatState, State
from sonde.nnx.structure.epoch import EPOCH, EXPOSED
from sonde.nnx.structure.value_kinds import ARRAY, KIND, NODE, OTHER, VARIABLE, is_object, kind_of
from sonde.nnx.structure.walk import walk

T = TypeVar("T")
_NUMBERS = (bool, int, float, complex, np.generic)
_NO_MODULES = (ARRAY, OTHER, VARIABLE)


def _children(node: Pytree) -> Iterator[tuple[Any, Any]]:
    layout, data, static = node._structure()
    for name, value in zip(layout.data_then_static, (*data, *static)):
        if KIND.get(type(value)) not in _NO_MODULES:
            yield name, value


register_modules(
    Pytree,
    ModuleKind(
        children=_children,
        child=lambda node, name: node._get_child(name),
        stamp=lambda: object() if EXPOSED else EPOCH.value,
        origin=lambda node: getattr(node, "_origin", None),
        is_root=lambda node: node._is_module,
    ),
)
register_no_modules(State)
register_no_modules(FlatState)


class Types(NamedTuple):
    """What `nnx.capture` wants from Modules; kept in `core.modules.stack.Wanted.more`.

    Attributes:
        recorded: The types of Variable that are recorded.
        given: The types of Variable that values were given for.
        outputs: The type that outputs of methods are recorded as; None if they are not recorded.
    """

    recorded: tuple[type, ...] = ()
    given: tuple[type, ...] = ()
    outputs: type | None = None

    def wants(self, variable_type: type) -> bool:
        """Whether a value of that type is recorded or added to."""
        return variable_type in self.recorded or variable_type in self.given


@dataclasses.dataclass(frozen=True, slots=True)
class Sown:
    """The tag of a Module's site.

    Attributes:
        type: The type of Variable it is recorded as.
        name: Its name.
        known: For every capture that runs, whether the Module belongs to its model.
        perturbs: Whether values may be added to it.
        reduce_fn: Combines what was recorded before with a value; None appends to a tuple.
        init_fn: Makes the initial value for `reduce_fn`.
    """

    type: type
    name: str
    known: tuple[bool, ...]
    perturbs: bool = False
    reduce_fn: Callable[[Any, Any], Any] | None = dataclasses.field(default=None, compare=False)
    init_fn: Callable[[], Any] | None = dataclasses.field(default=None, compare=False)


def _is_wanted(variable_type: type) -> bool:
    """Whether a capture wants values of a type; `sonde.capture` wants all."""
    state: Any = capture_state()
    return any(not isinstance(w.more, Types) or w.more.wants(variable_type) for w in state.modules)


def sow(
    module: Pytree,
    variable_type: type,
    name: str,
    value: object,
    reduce_fn: Callable[[Any, Any], Any] | None,
    init_fn: Callable[[], Any],
) -> bool | None:
    """Records a value if a running capture wants it; returns None if no capture runs."""
    if not SESSIONS.threads or capture_state() is None:
        return None
    if not _is_wanted(variable_type):
        return False
    scope, places = at_module(module)
    tag = Sown(variable_type, name, tuple([p.known for p in places]), reduce_fn=reduce_fn, init_fn=init_fn)
    with scope:
        mark_in_place(value, name, tag=tag, depth=3)
    _note(module, tag, value)
    return True


def _note(module: Pytree, tag: Sown, value: object) -> None:
    """Keeps a value sown while a function is traced, until its call ends: only then does the capture get it."""
    for stack in call_stacks():
        segment = stack.segments[-1]
        if len(stack.segments) > 1 and segment.frames and segment.frames[0].level is _jax.trace_level():
            segment.notes.append((module, tag, value))


def noted(stack: CallStack, module: Pytree) -> Iterator[tuple[Sown, Any]]:
    """What a Module has sown in the functions that are being traced."""
    for segment in stack.segments[1:]:
        for sower, tag, value in segment.notes:
            if sower is module:
                yield tag, value


def perturb(module: Pytree, name: str, value: object, variable_type: type) -> Any | None:
    """The value to continue with; None if no capture runs."""
    if not SESSIONS.threads or capture_state() is None:
        return None
    if not _is_wanted(variable_type):
        return value
    scope, places = at_module(module)
    # A Python number has no gradient; an array of it has.
    value = jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, _NUMBERS) else x, value)
    tag = Sown(variable_type, name, tuple([p.known for p in places]), perturbs=True)
    with scope:
        value = mark(value, name, tag=tag, depth=3)
    _note(module, tag, value)
    return value


def observed(name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    """A method that a capture can see; called once per method, when its class is made."""

    @functools.wraps(fn)
    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not SESSIONS.threads or capture_state() is None:
            return fn(self, *args, **kwargs)
        return run_method(self, name, fn, args, kwargs, keep=is_object, after=lambda y: _outputs(self, name, fn, y))

    return method


def _outputs(module: Pytree, name: str, fn: Callable[..., Any], result: T) -> T:
    """Records the output of a method as the types that captures ask for."""
    state: Any = capture_state()
    output_types = [w.more.outputs for w in state.modules if isinstance(w.more, Types) and w.more.outputs is not None]
    for variable_type in dict.fromkeys(output_types) if output_types else ():
        scope, places = at_module(module)
        tag = Sown(variable_type, name, tuple([p.known for p in places]))
        with scope:
            result = mark_arrays(result, name, is_object, code_of(fn), tag)
    return result


# ---------------------------------------------------------------------------------------------------------------------
# Copies
# ---------------------------------------------------------------------------------------------------------------------


def mark_copy(original: Pytree, copy: Pytree) -> None:
    """Marks `copy` as a copy of `original`."""
    if captures_run() and original is not copy:
        set_origin(copy, Origin(original, getattr(original, "_origin", None)))


def mark_copies(original: object, copy: T) -> T:
    """Marks all nodes of a copy that has the structure of the original; returns the copy."""
    if captures_run():
        mark_copied_nodes(walk(original, graph=True, verb="capture").nodes, copy)
    return copy


def mark_copied_nodes(originals: Iterable[tuple[Any, Any]], copy: object) -> None:
    """Marks the nodes in a copy, by the paths of their originals."""
    copies = dict(walk(copy, graph=True, verb="capture").nodes)
    for path, node in originals:
        if path in copies:
            mark_copy(node, copies[path])


def mark_copies_of_origin(origin: Origin | None, copy: object) -> None:
    """Marks a copy, and the nodes in it, with their origin, if it is known."""
    if origin is not None and (original := origin.ref()) is not None:
        mark_copies(original, copy)


def origin_of(node: object) -> Origin | None:
    """The origin that copies of a node are marked with; None when no capture runs."""
    if not captures_run() or kind_of(node) != NODE:
        return None
    return Origin(node, getattr(node, "_origin", None))
