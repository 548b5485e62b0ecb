"""What a function depends on besides its arguments: what it closes over, its defaults, and the globals that it names.

A program that was compiled for a function is no longer valid if a variable that the function reads has changed since.
`state_of` is the part of a key that changes with it. A `Search` also takes the arrays out, so that they can be
arguments of a program (`core/edits/hoisting.py`): the rest is its key, and from the arrays it makes the function again.

Values are compared by what they are, as far as they can be looked into; others, such as generators, are only equal to
themselves. Of modules, classes and the classes of objects, what the functions name is looked at. Installed
packages are taken not to change. Beyond 2,000 parts, values are compared by identity.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import types
import weakref
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from sonde import _jax
from sonde.core.session.caches import by_identity
from sonde.core.session.code_reads import is_library, is_of_library, is_ours, values_read, what_it_does
from sonde.core.session.remaking import Remake, can_be_filled, fill_dict, filled, function_again, joined

_MOST_PARTS, _DEPTH = 2_000, 50
_MOST_BYTES = 2**26  # of an array of NumPy, which may be changed in place
_ITSELF = (bool, int, str, bytes, type(None), type(...), np.dtype, np.generic)
_NO_NUMBERS = {bool, int, str, type(None), list, tuple, dict, types.FunctionType, types.MethodType, types.ModuleType}
_LEAF = jax.tree.structure(0)
_NOTHING = ()


class _Same:
    """Represents an object in a key: equal only to itself, as long as the object lives."""

    __slots__ = ("_hash", "_ref", "_value")

    def __init__(self, value: Any) -> None:
        self._hash = id(value)
        try:
            self._ref, self._value = weakref.ref(value), None
        except TypeError:
            self._ref, self._value = None, value

    def _get(self) -> Any:
        return self._value if self._ref is None else self._ref()

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, _Same) and (value := self._get()) is not None and value is other._get()
        )

    def __hash__(self) -> int:
        return self._hash


def state_of(*functions: Any) -> Hashable:
    """What some functions depend on besides their arguments; None if there is nothing."""
    states = []
    for function in functions:
        if callable(function):
            search = Search(hoists=False)
            states.append((*search.read_by(function), *search.of_classes))
    return tuple(states) if any(states) else None


def same_value(value: Any) -> Hashable:
    """A key that is equal for values that mean the same; by identity for those that cannot be compared."""
    search = Search(hoists=False)
    return (search.part(value)[0], *search.of_classes)


# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(slots=True)
class _Visit:
    """A value that may occur twice: where it was met, and whether it is made again; None as long as it is open."""

    number: int
    value: Any  # as long as it lives, no other value has its `id`
    is_remade: bool | None = None


class Search:
    """Looks through a value, and the functions and objects in it.

    Args:
        hoists: Whether arrays are taken out.
        exactly: Whether only arrays of JAX are, and no numbers of Python or NumPy.
        keeps_containers: Whether lists, dicts and objects stay as they are, with the arrays in them.

    Attributes:
        arrays: The arrays, in the order in which they are met.
        of_classes: What is read of classes.
        has_numbers: Whether numbers of Python or NumPy are among the arrays.
        asks: Whether any function may tell a number from an argument of a program without an error.
        writes: Whether any function may change lists, dicts or objects.
        assigns: Whether any function assigns variables that are not its own.
        is_tangled: Whether something that cannot be made again has itself in it.
    """

    def __init__(self, *, hoists: bool = True, exactly: bool = False, keeps_containers: bool = False) -> None:
        self.arrays: list[Any] = []
        self.of_classes: list[Hashable] = []
        self.has_numbers = self.asks = self.writes = self.is_tangled = False
        self.assigns = False
        self._hoists, self._exactly, self._keeps_containers = hoists, exactly, keeps_containers
        self._visits: dict[int, _Visit] = {}
        self._of_classes: set[tuple[type, str]] = set()
        self._left, self._depth = _MOST_PARTS, 0

    def part(self, value: Any, names: Sequence[str] = ()) -> tuple[Hashable, Remake | None]:
        """The key of a value, and what makes it again; None if that is the value itself.

        Args:
            value: Any value.
            names: The attributes that the function names that reads the value.
        """
        kind = type(value)
        if kind not in _NO_NUMBERS:  # whether something is an array takes JAX a while to tell
            if isinstance(value, (jax.Array, _jax.Tracer)):
                return self._array(value) if self._hoists else (_Same(value), None)
            if self._hoists and not self._exactly and _is_number(value):
                self.has_numbers = True
                return self._array(value)
            if isinstance(value, (float, complex, np.inexact)):
                return (kind, repr(value)), None  # distinguishes 0.0 from -0.0, and treats all NaNs as equal
        if isinstance(value, _ITSELF):
            return (kind, value), None
        if kind is types.ModuleType:
            return self._module(value, names), None
        self._left -= 1
        if self._left < 0 or self._depth > _DEPTH:
            return _Same(value), None
        self._depth += 1
        try:
            return self._inside(value, names)
        finally:
            self._depth -= 1

    def read_by(self, function: Any) -> tuple[Hashable, ...]:
        """The parts of the key that belong to what a function reads, without the function; none if that is nothing."""
        self._left -= 1
        if self._left < 0:
            return (_Same(function),)
        if isinstance(function, types.FunctionType) and is_of_library(function) and not is_ours(function):
            # Nothing that changes, but for functions that it wraps, as that which `jax.vmap` returns.
            return tuple([key for _, v in values_read(function) if callable(v) for key in self.read_by(v)])
        if isinstance(function, types.FunctionType):
            keys = self._function(function)[2][1:]
            return keys if any(key != _NOTHING for key in keys) else _NOTHING
        if isinstance(function, functools.partial | types.MethodType):
            return (self.part(function)[0],)
        if not isinstance(function, type) and callable(getattr(function, "__wrapped__", None)):
            return (*self._of_our_object(function), *self.read_by(function.__wrapped__))  # the rest are its programs
        return _NOTHING if isinstance(function, type) or is_of_library(function) else (self.part(function)[0],)

    def _array(self, value: Any) -> tuple[Hashable, Remake]:
        index = len(self.arrays)
        self.arrays.append(value)
        return "array", lambda arrays, made: arrays[index]

    def _all(self, values: Iterable[Any], names: Sequence[str]) -> tuple[tuple[Hashable, ...], list[Remake | None]]:
        parts = [self.part(value, names) for value in values]
        return tuple([key for key, _ in parts]), [remake for _, remake in parts]

    def _fixed(self, value: Any, names: Sequence[str] = ()) -> Hashable:
        """The key of a value whose arrays stay in it."""
        before, self._hoists = self._hoists, False
        try:
            return self.part(value, names)[0]
        finally:
            self._hoists = before

    def _all_fixed(self, values: Iterable[Any], names: Sequence[str]) -> tuple[Hashable, ...]:
        return tuple([self._fixed(value, names) for value in values])

    def _inside(self, value: Any, names: Sequence[str]) -> tuple[Hashable, Remake | None]:
        kind = type(value)
        if kind is tuple:
            keys, remakes = self._all(value, names)
            return (kind, keys), joined(value, remakes, tuple)
        if kind is types.MethodType:
            code = getattr(value.__func__, "__code__", None)
            more = names if code is None else (*names, *what_it_does(code).attributes)
            inside: tuple[Any, ...] = value.__func__, value.__self__
            keys, remakes = self._all(inside, more)
            return (kind, keys), joined(inside, remakes, lambda parts: types.MethodType(*parts))
        if kind is functools.partial:
            options, n = tuple(value.keywords), 1 + len(value.args)
            inside = (value.func, *value.args, *value.keywords.values())
            keys, remakes = self._all(inside, names)
            remake = joined(inside, remakes, lambda p: functools.partial(*p[:n], **dict(zip(options, p[n:]))))
            return (kind, n, options, keys), remake
        if isinstance(value, np.ndarray):
            return self._as_kept(value, _numpy_key(value)), None
        if isinstance(value, (set, frozenset)):
            return self._as_kept(value, (kind, frozenset([self._fixed(v, names) for v in value]))), None
        if isinstance(value, type):
            self._read_of_class(value, names)
            return (type, value), None

        visit = self._visits.get(id(value))
        if visit is not None:
            return self._again(visit)
        visit = self._visits[id(value)] = _Visit(len(self._visits), value)
        before = self._hoists
        is_function = type(value) is types.FunctionType
        self._hoists = before and (is_function or not self._keeps_containers)
        try:
            key, remake = self._visited(value, names, visit.number)
        finally:
            self._hoists = before
        visit.is_remade = remake is not None
        return (key if is_function else self._as_kept(value, key)), remake

    def _as_kept(self, value: Any, key: Hashable) -> Hashable:
        """The key of something that a function may change: equal content is not enough."""
        return (_Same(value), key) if self._keeps_containers else key

    def _again(self, visit: _Visit) -> tuple[Hashable, Remake | None]:
        number, is_made_first = visit.number, can_be_filled(visit.value)
        if visit.is_remade is False or not self._hoists:
            # What stays as it is must not lead to what is made again: it would go on with the arrays of this run.
            self.is_tangled |= visit.is_remade is not False
            return ("again", number), None
        self.is_tangled |= visit.is_remade is None and not is_made_first
        return ("again", number), lambda arrays, made: made[number]

    def _visited(self, value: Any, names: Sequence[str], number: int) -> tuple[Hashable, Remake | None]:
        kind = type(value)
        if kind is types.FunctionType:
            values, remakes, keys = self._function(value)
            return (kind, keys), function_again(value, values, remakes, number) if any(remakes) else None
        if kind is list:
            keys, remakes = self._all(value, names)
            return (kind, keys), filled(value, remakes, number, list, list.extend)
        if kind is dict:
            keys, remakes = self._all(value.values(), names)
            own_keys = tuple([self._fixed(name) for name in value])
            fill = functools.partial(fill_dict, tuple(value))
            return (kind, own_keys, keys), filled([*value.values()], remakes, number, dict, fill)
        if callable(getattr(value, "__wrapped__", None)):  # a jitted function, or another that keeps what it computed
            return (_Same(value), *self._of_our_object(value), self._fixed(value.__wrapped__, names)), None
        children, tree = jax.tree.flatten(value, is_leaf=lambda x: x is not value)
        if tree != _LEAF:
            return self._pytree(value, children, tree, names, number)
        return self._object(value, names, number)

    def _pytree(
        self, value: Any, children: list[Any], tree: Any, names: Sequence[str], number: int
    ) -> tuple[Hashable, Remake | None]:
        """A registered pytree, such as a module."""
        self._read_of_class(type(value), names)
        try:
            hash(tree)
        except TypeError:
            return (_Same(value), self._all_fixed(jax.tree.leaves(value), names)), None
        keys, remakes = self._all(children, names)
        return (tree, keys), joined(children, remakes, functools.partial(jax.tree.unflatten, tree), number)

    def _object(self, value: Any, names: Sequence[str], number: int) -> tuple[Hashable, Remake | None]:
        kind = type(value)
        is_compared = kind.__eq__ is not object.__eq__ and kind.__hash__ is not None
        if isinstance(value, enum.Enum) or is_of_library(value):
            return (by_identity(value) if is_compared else _Same(value), *self._of_our_object(value)), None
        self._read_of_class(kind, names)
        attributes = _attributes(value)
        if not can_be_filled(value):
            own = by_identity(value) if is_compared and not attributes else _Same(value)
            return (own, tuple(attributes), self._all_fixed(attributes.values(), names)), None
        keys, remakes = self._all([*attributes.values()], names)
        own = tuple(attributes)
        empty = functools.partial(object.__new__, kind)
        remake = filled(
            [*attributes.values()], remakes, number, empty, lambda new, parts: fill_dict(own, vars(new), parts)
        )
        return (kind, own, keys), remake

    def _of_our_object(self, value: Any) -> tuple[Hashable, ...]:
        """What one of our objects, such as what `edit` returns, has of the user's; no more is known of others."""
        if not str(type(value).__module__).startswith("sonde."):
            return ()
        return tuple([self._fixed(inner) for inner in _attributes(value).values() if callable(inner)])

    def _function(
        self, function: types.FunctionType
    ) -> tuple[list[tuple[str, Any]], list[Remake | None], tuple[Hashable, ...]]:
        """What a function reads, what makes that again, and its key, of which the first part is its code."""
        values, code, attributes = values_read(function), function.__code__, ()
        does = what_it_does(code)
        if not is_of_library(function):
            self.asks, self.writes, attributes = self.asks or does.asks, self.writes or does.writes, does.attributes
        elif not self._hoists and is_ours(function):
            # Beside the functions that they wrap, ours close over caches.
            user = [self._fixed(v) for _, v in values if callable(v) or isinstance(v, tuple)]
            return values, [], (_Same(function), *user)
        before = self._hoists
        if does.assigned and not does.assigned.isdisjoint([name for name, _ in values]):
            self.assigns, self._hoists = True, False
            code = code, _Same(function)  # which has variables of its own
        try:
            keys, remakes = self._all([value for _, value in values], attributes)
        finally:
            self._hoists = before
        if function.__dict__:
            own = {name: value for name, value in vars(function).items() if not name.startswith("__")}
            keys = (*keys, tuple(own), self._all_fixed(own.values(), attributes)) if own else keys
        return values, remakes, ((code, *[name for name, _ in values]), *keys)

    def _module(self, module: types.ModuleType, names: Sequence[str]) -> Hashable:
        if is_library(module.__name__):
            return _NOTHING
        return tuple([(name, self._fixed(vars(module)[name], names)) for name in names if name in vars(module)])

    def _read_of_class(self, kind: type, names: Sequence[str]) -> None:
        """Notes what functions read of a class that is not a library's, its methods and what these read included."""
        for name in (*names, "__call__"):
            owner = next((c for c in kind.__mro__ if name in vars(c)), None)
            if owner is None or (owner, name) in self._of_classes or is_library(owner.__module__):
                continue
            self._of_classes.add((owner, name))
            attribute = vars(owner)[name]
            for inner in ("fget", "__func__", "func"):  # of properties, and of class methods and cached properties
                attribute = getattr(attribute, inner, attribute)
            self.of_classes.append((name, self._fixed(attribute, names)))
            if isinstance(attribute, types.FunctionType):
                self._read_of_class(kind, what_it_does(attribute.__code__).attributes)


def _attributes(value: Any) -> dict[str, Any]:
    """The attributes of an object, also if they are in slots."""
    slots = [vars(kind).get("__slots__", ()) for kind in type(value).__mro__]
    names = [name for own in slots for name in ((own,) if isinstance(own, str) else own) if not name.startswith("__")]
    in_slots = {name: getattr(value, name) for name in names if hasattr(value, name)}
    return in_slots | getattr(value, "__dict__", {})


def _is_number(value: Any) -> bool:
    """Whether a value becomes an argument. Integers are often indices or shapes, which must stay known."""
    if type(value) is float or isinstance(value, np.inexact):
        return True
    return isinstance(value, np.ndarray) and np.issubdtype(value.dtype, np.inexact)


def _numpy_key(array: np.ndarray) -> Hashable:
    if array.dtype == object or array.nbytes > _MOST_BYTES:
        return _Same(array)
    content = array.tobytes()
    return array.shape, array.dtype, content if len(content) < 64 else hashlib.blake2b(content).digest()
