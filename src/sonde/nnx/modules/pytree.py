"""Pytree: objects with attributes that JAX can flatten.

An attribute is *data* (a child of the pytree) or *static* (part of its structure). Arrays, Variables and other Pytrees
are data by default; `nnx.data(x)` and `nnx.static(x)` on assignment, or `nnx.Data[T]` and `nnx.Static[T]` as
annotations, choose explicitly. A static attribute may not hold data: that is an error at assignment, because JAX would
never see the arrays.

Sharp edges:

* The status of an attribute stays: a data attribute stays data when a number is assigned, and assigning an array to a
  static attribute is an error.
* Plain lists and dicts that hold arrays must be `nnx.List`, `nnx.Dict` or wrapped in `nnx.data`. Changes inside such a
  plain container do not bump the epoch; those of `nnx.List` and `nnx.Dict` do.
* Like a Variable, a Pytree belongs to the trace level it was made at.
* Attributes written directly into `vars(obj)`, without `__setattr__`, are static.
"""

from __future__ import annotations

import abc
import copy as copy_module
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast, dataclass_transform

import jax

from sonde._array_text import human_size, size_and_bytes
from sonde._jax import trace_level
from sonde.core import SESSIONS, Origin, origin_for_copies
from sonde.errors import TraceContextError
from sonde.flax.flags import flag
from sonde.nnx.modules.attribute_status import (
    check_no_marks_inside,
    data,
    declared_in,
    marked_value,
    static,
    static_holds_data,
)
from sonde.nnx.rendering import Rendered, Writer
from sonde.nnx.structure.epoch import EPOCH, expose, next_number
from sonde.nnx.structure.layout import EMPTY, Layout, layout_of
from sonde.nnx.structure.value_kinds import (
    ARRAY,
    CONTAINER,
    KIND,
    NODE,
    VARIABLE,
    declare_node_type,
    has_data,
    is_data,
    kind_of,
)
from sonde.nnx.variable.variable import Variable

#: Whether a class is a pytree if it does not say; as in Flax, what the flag says when the package is imported.
_PYTREES: bool = flag("flax_pytree_module")
_SLOTS = ("_layout", "_level", "_origin", "_stamp")


@dataclass_transform(field_specifiers=(dataclasses.field, data, static))
def dataclass(
    cls: Any = None,
    /,
    *,
    init: bool = True,
    eq: bool = True,
    order: bool = False,
    unsafe_hash: bool = False,
    match_args: bool = True,
    kw_only: bool = False,
    slots: bool = False,
    weakref_slot: bool = False,
) -> Any:
    """Makes a Pytree or Module class a dataclass that keeps the display of Pytrees.

    Example:
        >>> from sonde import nnx
        >>> @nnx.dataclass
        ... class Config(nnx.Pytree):
        ...     size: int = nnx.static(default=4)
        ...     scale: float = nnx.data(default=1.0)
        >>> Config().size, nnx.to_pure_dict(nnx.state(Config(), graph=False))
        (4, {'scale': 1.0})
    """

    def decorate(cls: type) -> Any:
        if not issubclass(cls, Pytree):
            raise TypeError(f"nnx.dataclass takes a subclass of nnx.Pytree, got {cls}; use dataclasses.dataclass.")
        return dataclasses.dataclass(
            init=init,
            repr=False,
            eq=eq,
            order=order,
            unsafe_hash=unsafe_hash,
            match_args=match_args,
            kw_only=kw_only,
            slots=slots,
            weakref_slot=weakref_slot,
        )(cls)

    return decorate if cls is None else decorate(cls)


class PytreeMeta(abc.ABCMeta):
    """The metaclass of Pytrees: abstract methods work without `abc.ABC`, and new objects are checked."""

    # Hidden from type checkers, which would take its result, and not the signature of `__init__`, for all classes.
    if not TYPE_CHECKING:

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            """Makes an object, and checks it after `__init__`.

            Raises:
                ValueError: A plain list or dict among its static attributes was filled with data after it was assigned.
            """
            made_object = super().__call__(*args, **kwargs)
            for value in attributes(made_object).values() if isinstance(made_object, _Slotted) else ():
                if type(value) in (list, dict) and value:
                    check_pytree(made_object)
                    break
            return made_object


class _Slotted:
    """The slots of every Pytree. A separate base, because a class that makes `__dict__` cannot also redefine it."""

    __slots__ = ("__dict__", "__weakref__", *_SLOTS)


#: The attributes of a Pytree, for code that bumps the epoch itself.
attributes = cast(Callable[[Any], dict[str, Any]], _Slotted.__dict__["__dict__"].__get__)
_set_dict = cast(Callable[[Any, Any], None], _Slotted.__dict__["__dict__"].__set__)
_set_layout = cast(Callable[[Any, Any], None], _Slotted.__dict__["_layout"].__set__)
_set_level = cast(Callable[[Any, Any], None], _Slotted.__dict__["_level"].__set__)
_set_stamp = cast(Callable[[Any, Any], None], _Slotted.__dict__["_stamp"].__set__)
set_origin = cast(Callable[[Any, Any], None], _Slotted.__dict__["_origin"].__set__)


class Pytree(_Slotted, Rendered, metaclass=PytreeMeta):
    """An object whose attributes JAX can flatten; the base of Module, Rngs, Optimizer and so on.

    Args of the class statement:
        pytree: False makes instances leaves to JAX (graph functions such as `nnx.split` still look inside), and lifts
            the rule that static attributes hold no data.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from sonde import nnx
        >>> class Line(nnx.Pytree):
        ...     def __init__(self, slope):
        ...         self.slope = jnp.array(slope)
        ...         self.name = "line"
        >>> jax.tree.map(lambda x: 2 * x, Line(1.5)).slope
        Array(3., dtype=float32, weak_type=True)
    """

    __slots__ = ()

    _layout: Layout
    _level: Any
    _origin: Origin  # only in copies that were made while a capture ran
    _stamp: int

    _is_pytree: ClassVar[bool] = True
    _is_module: ClassVar[bool] = False
    _never_a_pytree: ClassVar[bool] = False
    #: Whether objects have nothing but attributes, so that `build` may set them without `_blank` and `_fill`.
    _only_attributes: ClassVar[bool] = True
    _declared: ClassVar[Mapping[str | int, bool]] = {}
    _descriptors: ClassVar[frozenset[str]] = frozenset()

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Makes an object without attributes, at the current trace level."""
        del args, kwargs
        empty = object.__new__(cls)
        _set_layout(empty, EMPTY)
        _set_level(empty, trace_level())
        _set_stamp(empty, 0)
        return empty

    def __init_subclass__(cls, *, pytree: bool | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if pytree and cls._never_a_pytree:
            raise ValueError(f"{cls.__name__} derives from nnx.Object, which is not a pytree: remove pytree=True.")
        cls._is_pytree = not cls._never_a_pytree and _PYTREES if pytree is None else pytree
        declared = dict(cls._declared)
        for base in reversed(cls.__mro__[1:]):
            declared.update(base.__dict__.get("_declared", {}))
        declared.update(declared_in(cls))
        cls._declared = declared
        # Properties and slots: the class itself handles assignments to these names.
        cls._descriptors = frozenset(
            name for base in cls.__mro__ for name, value in vars(base).items() if hasattr(type(value), "__set__")
        )
        KIND[cls] = NODE
        if cls._is_pytree:
            _register(cls)

    # ------------------------------------------------------------------------------------------ attributes

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        """The attributes. Once read, they can change without a new epoch, so `nnx.jit` compares them at every call."""
        expose(self)
        return attributes(self)

    def __setattr__(self, name: str, value: Any) -> None:
        if self._level is not trace_level():
            raise _wrong_level(self)
        layout = self._layout
        status = layout.status.get(name)
        kind = KIND.get(type(value))
        if kind in (NODE, VARIABLE, ARRAY):  # the common cases first
            if status is True:
                pass
            elif status is None and name not in self._declared and name not in self._descriptors:
                _set_layout(self, layout.having(name, True))
            elif self._set_checked(name, value, layout, status):
                return
        elif self._set_checked(name, value, layout, status):
            return
        attributes(self)[name] = value
        EPOCH.value = number = next_number()
        _set_stamp(self, number)

    def _set_checked(self, name: str, value: object, layout: Layout, status: bool | None) -> bool:
        """Finds the status of an attribute; returns True if the assignment is done."""
        if name in self._descriptors:
            object.__setattr__(self, name, value)
            return True
        value, explicit = marked_value(value)
        new_status = self._status_for(name, value, status, explicit)
        attributes(self)[name] = value
        if new_status is not status:
            _set_layout(self, layout.having(name, new_status))
        EPOCH.value = number = next_number()
        _set_stamp(self, number)
        return True

    def _status_for(self, name: str | int, value: object, status: bool | None, explicit: bool | None) -> bool:
        """The status that an attribute gets when `value` is assigned.

        Raises:
            ValueError: The value holds data and the attribute is static; or `nnx.data` or `nnx.static` marks what is
                inside of the value.
        """
        if not self._is_pytree:  # the walk looks into every attribute
            return True if explicit is None else explicit
        check_no_marks_inside(self, name, value)
        new_status = status if explicit is None else explicit
        if new_status is None:
            new_status = self._declared.get(name)
        kind = kind_of(value)
        if new_status is None:
            new_status = is_data(value)
        if not new_status and (kind != CONTAINER or value) and (data_inside := has_data(value)):
            was_static = status is False
            raise static_holds_data(
                self, name, value, data_inside, explicit=explicit is not None, was_static=was_static
            )
        return new_status

    def __delattr__(self, name: str) -> None:
        if self._level is not trace_level():
            raise _wrong_level(self)
        if name not in attributes(self):
            object.__delattr__(self, name)  # a descriptor, or the usual error
            return
        del attributes(self)[name]
        if name in self._layout.status:
            _set_layout(self, self._layout.lacking(name))
        EPOCH.value = number = next_number()
        _set_stamp(self, number)

    def __dir__(self) -> list[str]:
        return sorted({*attributes(self), *dir(type(self))} - {*_SLOTS})

    # ------------------------------------------------------------------------------------------- structure

    def _structure(self) -> tuple[Layout, tuple[Any, ...], tuple[Any, ...]]:
        """The layout, the values of the data attributes and those of the static ones, in the layout's order."""
        values = attributes(self)
        layout = self._layout
        # Code that wrote to `vars(self)` bypassed `__setattr__`; the length gives that away cheaply.
        if len(values) != layout.size:
            layout = self._resynchronised()
        return layout, layout.get_data(values), layout.get_static(values)

    def _resynchronised(self) -> Layout:
        """The layout after a write to `vars(self)`: new names are static."""
        old_statuses = self._layout.status
        layout = layout_of({name: old_statuses.get(name, not self._is_pytree) for name in attributes(self)})
        _set_layout(self, layout)
        return layout

    @classmethod
    def _blank(cls, layout: Layout, level: object) -> Self:
        """Makes an object at a trace level without `__init__`; `_fill` sets its attributes."""
        blank = object.__new__(cls)
        _set_layout(blank, layout)
        _set_level(blank, level)
        _set_stamp(blank, 0)
        return blank

    def _fill(self, layout: Layout, data: Iterable[Any], static: Iterable[Any]) -> None:
        """Sets all attributes, in the order of their names."""
        values = attributes(self)
        values.update(layout.status)  # sets the order of the names
        values.update(zip(layout.data_then_static, (*data, *static)))

    def _become(self, layout: Layout, data: Iterable[Any], static: Iterable[Any]) -> None:
        """Replaces all attributes."""
        attributes(self).clear()
        _set_layout(self, layout)
        self._fill(layout, data, static)
        EPOCH.value = number = next_number()
        _set_stamp(self, number)

    @classmethod
    def _assemble(cls, layout: Layout, data: Iterable[Any], static: Iterable[Any]) -> Self:
        """Makes an object with these attributes, without `__init__`."""
        assembled = cls._blank(layout, trace_level())
        if cls._only_attributes:  # in JAX's order, as in Flax
            attributes(assembled).update(zip(layout.data_then_static, (*data, *static)))
        else:
            assembled._fill(layout, data, static)
        return assembled

    def _get_child(self, key: str) -> Any:
        """The child at a key of a state; `KeyError` or `IndexError` if there is none."""
        return attributes(self)[key]

    def _set_child(self, key: str, value: object) -> None:
        """Sets the child at a key of a state."""
        setattr(self, key, value)

    def _delete_child(self, key: str) -> None:
        """Removes the child at a key of a state."""
        delattr(self, key)

    def _clear(self) -> None:
        """Removes all attributes, as if the object had just been made."""
        attributes(self).clear()
        _set_layout(self, EMPTY)
        EPOCH.value = number = next_number()
        _set_stamp(self, number)

    # ------------------------------------------------------------------------------------ copying, pickling

    def __copy__(self) -> Self:
        return type(self)._assemble(*self._structure())

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        memo = {} if memo is None else memo
        layout, data, static = self._structure()
        # In the memo before its attributes are copied: they may refer back to it.
        memo[id(self)] = copied = type(self)._blank(layout, trace_level())
        copied._fill(layout, copy_module.deepcopy(data, memo), copy_module.deepcopy(static, memo))
        return copied

    def __reduce__(self) -> Any:
        return _unpickle_empty, (type(self),), self.__getstate__()

    def __getstate__(self) -> Any:
        layout = self._layout if len(attributes(self)) == self._layout.size else self._resynchronised()
        return dict(attributes(self)), layout

    def __setstate__(self, state: tuple[dict[str, Any], Layout]) -> None:
        values, layout = state
        attributes(self).update(values)
        _set_layout(self, layout)
        EPOCH.value = number = next_number()
        _set_stamp(self, number)

    # --------------------------------------------------------------------------------------------- display

    _nnx_shows_numbers = False

    def _nnx_text(self, writer: Writer, depth: int) -> str:
        if not writer.is_first(self):
            return f"{type(self).__name__}(...)"
        sizes = _sizes_by_type(self)
        return self._nnx_entries(writer, depth, f" # {sizes}" if sizes else "")

    def _nnx_entries(self, writer: Writer, depth: int, note: str) -> str:
        name = type(self).__name__
        if isinstance(self, Mapping):
            return f"{name}({writer.mapping(attributes(self), depth, note)})"
        visible = {k: v for k, v in attributes(self).items() if not k.startswith("__")}
        entries = [f"{k}={writer.write(v, depth + 1)}" for k, v in visible.items()]
        return writer.lines(f"{name}(", entries, ")", depth, note)

    def _nnx_attributes(self) -> Mapping[str, object]:
        return attributes(self)


declare_node_type(Pytree)


def _sizes_by_type(node: Pytree) -> str:
    """Sizes of the Variables in a node by type: `BatchStat: 2 (8 B), Param: 6 (24 B), Total: 8 (32 B)`."""
    totals: dict[str, tuple[int, int]] = {}
    counted: set[int] = set()
    for leaf in jax.tree.leaves(list(_data_below(node)), is_leaf=lambda x: isinstance(x, Variable)):
        if not isinstance(leaf, Variable) or id(leaf) in counted:
            continue
        counted.add(id(leaf))
        size, n_bytes = size_and_bytes(leaf.get_raw_value())
        if size:
            before = totals.get(type(leaf).__name__, (0, 0))
            totals[type(leaf).__name__] = (before[0] + size, before[1] + n_bytes)
    if len(totals) > 1:
        sizes, n_bytes = zip(*totals.values())
        totals = dict(sorted(totals.items())) | {"Total": (sum(sizes), sum(n_bytes))}
    return ", ".join(f"{name}: {size:,} ({human_size(b)})" for name, (size, b) in totals.items())


def _data_below(node: Pytree, entered: frozenset[int] = frozenset()) -> Iterator[Any]:
    """The data of a node and of all nodes below it, even if a node contains itself."""
    if id(node) in entered:
        return
    entered |= {id(node)}
    for child in node._structure()[1]:
        for leaf in jax.tree.leaves(child, is_leaf=lambda x: isinstance(x, (Pytree, Variable))):
            if isinstance(leaf, Pytree):
                yield from _data_below(leaf, entered)
            else:
                yield leaf


def _unpickle_empty(cls: type[Pytree]) -> Pytree:
    return Pytree.__new__(cls)


def _wrong_level(node: Pytree) -> TraceContextError:
    return TraceContextError(
        f"A {type(node).__name__} was changed at a trace level other than the one it was made at. Inside a "
        f"transformed function, change only objects that are made there or are arguments of an nnx transform."
    )


def check_pytree(pytree: object) -> None:
    """Checks that no static attribute of a Pytree holds data, which can happen by writing to `vars(obj)`.

    Raises:
        TypeError: It is not a Pytree.
        ValueError: A static attribute holds data.
    """
    if not isinstance(pytree, Pytree):
        raise TypeError(f"nnx.check_pytree takes an nnx.Pytree, got a {type(pytree).__name__}.")
    if not pytree._is_pytree:
        return
    layout, _, values = pytree._structure()
    for name, value in zip(layout.static, values):
        if data_inside := has_data(value):
            raise static_holds_data(pytree, name, value, data_inside, explicit=False, was_static=False)


# Layout, static values, and the origin for copies; all origins, and None, compare equal.
StaticPart = tuple[Layout, tuple[Any, ...], Origin | None]


def _flatten(node: Pytree) -> tuple[tuple[Any, ...], StaticPart]:
    layout, data, static = node._structure()
    # JAX keeps this part in its caches, so the origin is in it only while a capture runs.
    return data, (layout, static, _origin_for_copies(node) if SESSIONS.threads else None)


def _flatten_with_keys(node: Pytree) -> tuple[list[tuple[Any, Any]], StaticPart]:
    layout, data, static = node._structure()
    origin = _origin_for_copies(node) if SESSIONS.threads else None
    return list(zip(layout.data_keys, data)), (layout, static, origin)


def _origin_for_copies(node: Pytree) -> Origin | None:
    return origin_for_copies(node, getattr(node, "_origin", None))


def _register(cls: type[Pytree]) -> None:
    def unflatten(structure: StaticPart, data: Iterable[Any]) -> Pytree:
        layout, static, origin = structure
        rebuilt = cls._assemble(layout, data, static)
        if origin is not None:
            set_origin(rebuilt, origin)
        return rebuilt

    jax.tree_util.register_pytree_with_keys(cls, _flatten_with_keys, unflatten, _flatten)


class Object(Pytree, pytree=False):
    """An older name, kept for code that subclasses it: a Pytree that is a leaf to JAX and a node to nnx."""

    _never_a_pytree = True


KIND[Pytree] = NODE
_register(Pytree)
