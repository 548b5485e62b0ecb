"""Which values of a program are sites, and how to mark them without changing what the program does.

Code that was not written for Sonde may rely on anything: that a variable is the same object as before, that a list is
shared, that a number stays a number. So a capture of values changes nothing: the program continues with its own
objects.

For gradients and edits a value must pass through its site, and the program continues with the result. Arrays do that. A
tuple, list or dict of arrays is rebuilt if nothing else refers to it, and only read otherwise: such a record has no
gradient, and editing it is an error. An array whose numbers are known while a function is traced (a constant) is also
only read, unless an edit runs, its numbers are floats, and it is JAX's: the program may write into one of NumPy.
Objects that a library uses like arrays (`register_arrays`) are rebuilt too. Objects of other classes that JAX knows as
pytrees, such as data classes of `chex` and `flax.struct`, are only read: their record is a dict of what is in them.
Everything else is not a site, including modules, callables, and objects that JAX does not know; nor are the tangents in
the rule of a derivative that is taken in reverse mode, which have no numbers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde import _jax
from sonde.core import (
    LEAF,
    CaptureState,
    Site,
    SiteTrace,
    as_now,
    check_scopes,
    module_kind,
    through_site,
    with_capture_state,
)
from sonde.errors import CaptureError
from sonde.inside.same_object import note

# Types of most values that are not arrays, for a quick test.
NEVER: frozenset[type] = frozenset({type(None), bool, int, float, complex, str, bytes, type, slice, type(Ellipsis)})
_ONE_ARRAY = (True,)
_DEEP = 100
# Types of NumPy that JAX does not have, where they are longer than its own.
_TOO_LONG = {np.dtype(t) for t, own in ((np.longdouble, 8), (np.clongdouble, 16)) if np.dtype(t).itemsize > own}
_KEPT = (bool, int, float, complex, str, type(None))


class Other:
    """Replaces an object that is not an array in the record of a tuple or dict."""

    __slots__ = ("name",)

    def __init__(self, value: Any) -> None:
        self.name = type(value).__name__

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Other) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)


class _LibraryTypes:
    """Classes that libraries have registered.

    Attributes:
        arrays: Pytrees whose instances are used like arrays and do not change.
        passed_on: Classes whose arrays modules pass on beside their values, such as running statistics.
    """

    def __init__(self) -> None:
        self.arrays: set[type] = set()
        self.passed_on: tuple[type, ...] = ()


LIBRARY_TYPES = _LibraryTypes()


def _unseen() -> contextlib.AbstractContextManager[None]:
    """Around the methods that take a library's arrays apart: the program does not call them here, marked or not."""
    return with_capture_state(None) if LIBRARY_TYPES.arrays else contextlib.nullcontext()


def register_arrays(*types: type) -> None:
    """Registers classes of pytrees whose instances are used like arrays and do not change."""
    LIBRARY_TYPES.arrays.update(types)


def register_passed_on(cls: type) -> None:
    """Registers a class whose arrays modules pass on beside their values, such as running statistics.

    Edits leave its objects alone. An edit may make each array of a value vary over the examples of a `vmap`, but these
    are often shared by all examples.
    """
    LIBRARY_TYPES.passed_on += (cls,)


def is_array(value: Any) -> bool:
    """Whether a value is an array of numbers (or keys), traced or not."""
    if isinstance(value, _jax.Tracer):
        return _jax.is_array_type(value.aval)
    if isinstance(value, np.ndarray):
        if value.dtype in _TOO_LONG:
            return False
        return value.dtype.kind in "biufcV" and (value.dtype.kind != "V" or _jax.is_number_type(value.dtype))
    return isinstance(value, jax.Array)


def marked(
    value: Any,
    name: str,
    frame: FrameType,
    state: CaptureState,
    depths: frozenset[int],
    *,
    references: int | None = None,
    is_kept: bool = False,
) -> Any:
    """Marks a value as a site; returns the value that the program continues with.

    Args:
        value: Anything.
        name: The name of the site.
        frame: The frame of the function, which is on the line of the site.
        state: The state of the thread's captures.
        depths: Which of the nested captures see the site.
        references: How many references there are to the value; None if unknown.
        is_kept: Whether the program must continue with the same object; the site then has no gradient.
    """
    trace = _jax.current_trace()
    if trace is None:  # JAX takes an argument or a result of a transform apart, between two programs
        return value
    if trace is _jax.eval_trace:  # outside the captured program, as in a function that runs on the host
        source = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        if is_array(value) and state.inside is not None and state.inside.must_see(source):
            raise CaptureError(
                f"variable {name!r} of {frame.f_code.co_qualname} ({source}) cannot be captured: the function was "
                "requested by name, but runs on the host, outside the captured program. Leave it out of inside="
            )
        return value
    if isinstance(value, (jax.Array, np.ndarray)):
        if not is_array(value):
            return value
        leaves, tree, arrays, statics, shared = [value], LEAF, _ONE_ARRAY, (), False
    elif _is_container(value):
        with _unseen():
            if not _holds_arrays(value, []):
                return value
            leaves, tree = jax.tree.flatten(value, is_leaf=_is_leaf)
        arrays = tuple(map(is_array, leaves))
        if not any(arrays):
            return value
        statics = tuple(x if type(x) in _KEPT else Other(x) for x, a in zip(leaves, arrays) if not a)
        shared = type(value) not in LIBRARY_TYPES.arrays and (
            references is None or references > _alone() or _has_attributes(value) or not _parts_are_alone(value)
        )
    else:
        leaves, tree = jax.tree.flatten(_fields_of(value), is_leaf=_is_leaf)
        arrays = tuple(map(is_array, leaves))
        if not any(arrays):
            return value
        statics, shared = tuple(x if type(x) in _KEPT else Other(x) for x, a in zip(leaves, arrays) if not a), True
    arrays_in_value = [x for x, a in zip(leaves, arrays) if a]
    if any(map(_jax.is_unknown_tangent, arrays_in_value)):
        return value
    own = type(trace) is SiteTrace
    passes = state.grads or state.edits
    early = _jax.evaluates_early()  # values computed now are constants of the program
    in_place = (
        not passes
        or is_kept
        or shared
        or early
        or not (own or all(_may_be_replaced(x, state) for x in arrays_in_value))
    )
    check_scopes(name)
    site = Site.new(
        name,
        tree=tree,
        arrays=arrays,
        statics=statics,
        tag=None,
        grads=state.grads and not in_place,
        code=frame.f_code,
        line=frame.f_lineno,
        in_place=in_place,
        depths=depths,
        handlers=state.seen_by,
    )
    site.has_gradient = not in_place
    passed = list(map(as_now, arrays_in_value))
    with _jax.evaluated_late() if early else contextlib.nullcontext():
        outs = through_site(passed, site, state)
    if in_place:
        return value
    outs = [before if after is now else after for before, now, after in zip(arrays_in_value, passed, outs)]
    if not state.edits:
        # Numbers without gradients stay as they are: in a tuple with a mapped array they would be mapped too.
        outs = [after if _is_inexact(before) else before for before, after in zip(arrays_in_value, outs)]
    for before, after in zip(arrays_in_value, outs):
        note(before, after)
    if tree is LEAF:
        return outs[0]
    if all(a is b for a, b in zip(arrays_in_value, outs)):
        return value
    remaining = iter(outs)
    with _unseen():
        return _rebuilt(value, iter([next(remaining) if a else x for x, a in zip(leaves, arrays)]))


def _may_be_replaced(value: Any, state: CaptureState) -> bool:
    if isinstance(value, _jax.Tracer):
        return True
    # The program may write into a NumPy array, which it could not do with a traced one.
    return state.edits and _is_inexact(value) and not isinstance(value, np.ndarray)


def _is_inexact(value: Any) -> bool:
    return jnp.issubdtype(value.dtype, jnp.inexact)


# ---------------------------------------------------------------------------------------------------------------------
# Containers
# ---------------------------------------------------------------------------------------------------------------------


def _is_container(value: Any) -> bool:
    kind = type(value)
    if kind is dict:
        return all(type(key) is str for key in value) or all(type(key) is int for key in value)
    return (
        kind is tuple
        or kind is list
        or kind in LIBRARY_TYPES.arrays
        or (issubclass(kind, tuple) and _is_named_tuple(kind))
    )


def _is_named_tuple(kind: type) -> bool:
    """Whether a class is made of its fields; not if it has another constructor, which JAX would call with them."""
    return next("_fields" in vars(k) for k in kind.__mro__ if "__new__" in vars(k))


def _holds_arrays(value: Any, around: list[Any]) -> bool:
    """Whether there are arrays in a container; False if it contains itself, because it is then not a tree."""
    if type(value) in LIBRARY_TYPES.arrays:
        try:
            return any(map(is_array, jax.tree.leaves(value)))
        except Exception:  # an object that is still being made
            return False
    holds_arrays = False
    around.append(value)
    for part in value.values() if type(value) is dict else value:
        if is_array(part):
            holds_arrays = True
        elif type(part) not in NEVER and _is_container(part):
            if len(around) > _DEEP or any(part is outer for outer in around):
                return False
            before = len(around)
            holds_arrays = _holds_arrays(part, around) or holds_arrays
            if len(around) > before:  # it or a part contains itself, or is too deep
                return False
    around.pop()
    return holds_arrays


def _is_leaf(value: Any) -> bool:
    return value is not None and not _is_container(value)


def _rebuilt(value: Any, leaves: Iterator[Any]) -> Any:
    """The container with other leaves, in JAX's order; a dict keeps its own order of keys."""
    if value is None:
        return None
    if _is_leaf(value):
        return next(leaves)
    if type(value) in LIBRARY_TYPES.arrays:
        tree = jax.tree.structure(value)
        return jax.tree.unflatten(tree, itertools.islice(leaves, tree.num_leaves))
    if type(value) is dict:
        by_sorted_key = {key: _rebuilt(value[key], leaves) for key in sorted(value)}
        return {key: by_sorted_key[key] for key in value}
    parts = [_rebuilt(part, leaves) for part in value]
    if type(value) is list:
        return parts
    return tuple(parts) if type(value) is tuple else tuple.__new__(type(value), parts)


def _parts_are_alone(value: Any) -> bool:
    """Whether nothing but the container refers to the containers in it."""
    if type(value) in LIBRARY_TYPES.arrays:
        return True
    parts = list(value.values()) if type(value) is dict else value
    extra = 1 if parts is not value else 0  # the list of values
    for part in parts:
        if type(part) in LIBRARY_TYPES.arrays:
            continue
        if _is_container(part) and (
            sys.getrefcount(part) > _in_container() + extra or _has_attributes(part) or not _parts_are_alone(part)
        ):
            return False
    return True


def _fields_of(value: Any, depth: int = 0) -> dict[str, Any] | None:
    """What is in an object that JAX knows as a pytree, by name; None for all other objects, and for modules."""
    if type(value) in NEVER or callable(value) or depth > _DEEP:
        return None
    if module_kind(value) is not None and not dataclasses.is_dataclass(value):
        return None
    try:
        with with_capture_state(None):
            parts, _ = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda x: x is not value)
    except Exception:  # an object that is still being made
        return None
    if any(not path for path, _ in parts):  # no pytree
        return None
    fields: dict[str, Any] = {}
    for (key,), part in parts:
        name = str(getattr(key, "name", getattr(key, "key", key)))
        inner = None if is_array(part) or _is_container(part) else _fields_of(part, depth + 1)
        fields[name] = part if inner is None else inner
    return fields


def _has_attributes(value: Any) -> bool:
    """Whether a named tuple has attributes besides its fields, which it would not have if it were rebuilt."""
    return bool(getattr(value, "__dict__", None))


# Python counts references: if only a call of `FunctionMarks.mark` refers to an object, nothing else in the program
# does. Marked code calls it through a `functools.partial`, which is written in C, so the count does not depend on how
# the interpreter runs the call. The number of references in such a call is measured once, by making one.


def _count(self: object, value: Any, name: str) -> int:
    del self, name
    return sys.getrefcount(value)


@functools.cache
def _alone() -> int:
    """The number of references to an object that only a call of `FunctionMarks.mark` refers to."""
    return functools.partial(_count, None)([object()], "x")


@functools.cache
def _in_container() -> int:
    """The number of references to an object that only a container refers to, in a loop over it."""
    for part in ([object()],):
        return sys.getrefcount(part)
    raise AssertionError


def called_from_c(method: Callable[..., Any], self: object) -> Callable[..., Any]:
    """A method of an object, to be called by marked code."""
    return functools.partial(method, self)
