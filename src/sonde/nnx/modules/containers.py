"""List, Dict and Sequential: containers that are Modules.

They hold data and static values side by side and, unlike plain lists and dicts, announce their changes. An item keeps
its status as an attribute does: an array cannot replace a number, unless it is wrapped in `nnx.data`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, MutableSequence
from typing import Any, Generic, Self, TypeVar, cast, overload

from sonde._jax import trace_level
from sonde.flax.release import follows
from sonde.nnx.modules import pytree
from sonde.nnx.modules.attribute_status import marked_value
from sonde.nnx.modules.module import Module
from sonde.nnx.modules.pytree import attributes
from sonde.nnx.rendering import Writer
from sonde.nnx.structure.epoch import EPOCH, next_number
from sonde.nnx.structure.layout import EMPTY, Layout, layout_of

A = TypeVar("A")


class List(Module, MutableSequence[A], Generic[A]):
    """A list of Modules, Variables, arrays and static things.

    Example:
        >>> import jax
        >>> from sonde import nnx
        >>> layers = nnx.List([nnx.Param(1.0), "relu", nnx.Param(2.0)])
        >>> layers.append(nnx.Param(3.0))
        >>> jax.tree.leaves(layers)
        [1.0, 2.0, 3.0]
    """

    # Items are not attributes with numbers for names: each `append` would make another layout, as long as the list. The
    # layout of all, `_whole`, is made when it is asked for.
    __slots__ = ("_items", "_statuses", "_whole")
    _only_attributes = False
    _observes_methods = False

    _items: list[Any]
    _statuses: list[bool]
    _whole: Layout | None

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Makes an empty List; `__init__` fills it."""
        empty = super().__new__(cls, *args, **kwargs)
        _set_items(empty, [])
        _set_statuses(empty, [])
        _set_whole(empty, None)
        return empty

    def __init__(self, it: Iterable[A] | None = None, /):
        for value in it if it is not None else ():
            self.append(value)

    def _changed(self) -> None:
        _set_whole(self, None)
        EPOCH.value = number = next_number()
        pytree._set_stamp(self, number)

    def _check_level(self) -> None:
        if self._level is not trace_level():
            raise pytree._wrong_level(self)

    def _checked(self, index: int, value: object, status: bool | None) -> tuple[Any, bool]:
        """The bare value and its status."""
        value, explicit = marked_value(value)
        return value, self._status_for(index, value, status, explicit)

    def __len__(self) -> int:
        return len(self._items)

    def append(self, value: A) -> None:
        """Adds an item at the end."""
        self._check_level()
        value, status = self._checked(len(self._items), value, None)
        self._items.append(value)
        self._statuses.append(status)
        self._changed()

    def insert(self, index: int, value: A) -> None:
        """Adds an item before the one at `index`."""
        self._check_level()
        value, status = self._checked(index, value, None)
        self._items.insert(index, value)
        self._statuses.insert(index, status)
        self._changed()

    @overload
    def __getitem__(self, index: int) -> A: ...
    @overload
    def __getitem__(self, index: slice) -> list[A]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self._items[index]

    def __setitem__(self, index: int | slice, value: Any) -> None:
        self._check_level()
        if isinstance(index, slice):
            positions = range(*index.indices(len(self._items)))
            values = list(value)
            if len(positions) != len(values):
                raise ValueError(
                    f"Length mismatch: {len(values)} values for {len(positions)} items of a List; a slice must be "
                    f"replaced by as many items as it has."
                )
        else:
            positions, values = [range(len(self._items))[index]], [value]
        # All are checked before the first is stored.
        checked = [self._checked(i, v, self._statuses[i]) for i, v in zip(positions, values)]
        for i, (v, status) in zip(positions, checked):
            self._items[i] = v
            self._statuses[i] = status
        self._changed()

    def __delitem__(self, index: int | slice) -> None:
        self._check_level()
        del self._items[index]
        del self._statuses[index]
        self._changed()

    def __iter__(self) -> Iterator[A]:
        return iter(self._items)

    def reverse(self) -> None:
        """Reverses the order, in place."""
        self._check_level()
        self._items.reverse()
        self._statuses.reverse()
        self._changed()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self is other or (self._items == other._items and attributes(self) == attributes(other))

    __hash__ = Module.__hash__

    # The items come before the attributes that may have been set on a List.

    def _nnx_entries(self, writer: Writer, depth: int, note: str) -> str:
        entries = [writer.write(v, depth + 1) for v in self]
        return f"{type(self).__name__}({writer.lines('[', entries, ']', depth, note)})"

    def _nnx_attributes(self) -> Mapping[str, object]:
        return {**attributes(self), "items": list(self)}

    def _structure(self) -> tuple[Layout, tuple[Any, ...], tuple[Any, ...]]:
        attributes, data, static = super()._structure()
        layout = self._whole
        if layout is None:
            layout = layout_of({**dict(enumerate(self._statuses)), **attributes.status})
            _set_whole(self, layout)
        items = self._items
        data = (*[items[k] for k in layout.data[: len(layout.data) - len(data)]], *data)
        return layout, data, (*[items[k] for k in layout.static[: len(layout.static) - len(static)]], *static)

    @classmethod
    def _blank(cls, layout: Layout, level: object) -> Self:
        blank = super()._blank(layout, level)
        blank._split(layout)
        return blank

    def _become(self, layout: Layout, data: Iterable[Any], static: Iterable[Any]) -> None:
        self._split(layout)
        attributes(self).clear()
        self._fill(layout, data, static)
        self._changed()

    def _split(self, layout: Layout) -> None:
        """Divides a layout into that of the items and that of the attributes."""
        attribute_statuses = {k: v for k, v in layout.status.items() if type(k) is not int}
        statuses = [v for k, v in layout.status.items() if type(k) is int]
        pytree._set_layout(self, layout_of(attribute_statuses) if attribute_statuses else EMPTY)
        _set_items(self, [None] * len(statuses))
        _set_statuses(self, statuses)
        _set_whole(self, layout)

    def _fill(self, layout: Layout, data: Iterable[Any], static: Iterable[Any]) -> None:
        items, attribute_values = self._items, attributes(self)
        for names, values in ((layout.static, static), (layout.data, data)):
            for name, value in zip(names, values):
                if type(name) is int:
                    items[name] = value
                else:
                    attribute_values[name] = value

    def _get_child(self, key: str | int) -> Any:
        return self._items[key] if isinstance(key, int) else super()._get_child(key)

    def _set_child(self, key: str | int, value: Any) -> None:
        if not isinstance(key, int):
            super()._set_child(key, value)
        elif key == len(self._items):
            self.append(value)
        else:
            self[key] = value

    def _delete_child(self, key: str | int) -> None:
        if isinstance(key, int):
            del self[key]
        else:
            super()._delete_child(key)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        _set_whole(self, None)

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        _set_whole(self, None)

    def _clear(self) -> None:
        super()._clear()
        self._items.clear()
        self._statuses.clear()
        self._changed()

    def __reduce__(self) -> Any:
        return _unpickle_empty_list, (type(self),), self.__getstate__()

    def __getstate__(self) -> Any:
        return super().__getstate__(), self._items, self._statuses

    def __setstate__(self, state: Any) -> None:
        attributes, items, statuses = state
        super().__setstate__(attributes)
        _set_items(self, list(items))
        _set_statuses(self, list(statuses))
        self._changed()


_set_items = cast(Callable[[Any, Any], None], List.__dict__["_items"].__set__)
_set_statuses = cast(Callable[[Any, Any], None], List.__dict__["_statuses"].__set__)
_set_whole = cast(Callable[[Any, Any], None], List.__dict__["_whole"].__set__)


def _unpickle_empty_list(cls: type[List[Any]]) -> List[Any]:
    return List.__new__(cls)


class Dict(Module, MutableMapping[str, A], Generic[A]):
    """A dict of Modules, Variables, arrays and static things; items are attributes too.

    Args:
        mapping: A mapping, or pairs.
        **kwargs: More items.

    Example:
        >>> from sonde import nnx
        >>> layers = nnx.Dict({"w": nnx.Param(1.0)}, name="dense")
        >>> layers.w is layers["w"], list(layers)
        (True, ['w', 'name'])
    """

    _observes_methods = False

    def __init__(self, mapping: Mapping[str, A] | Iterable[tuple[str, A]] = (), /, **kwargs: A):
        for key, value in {**dict(mapping), **kwargs}.items():
            self[key] = value

    def __getitem__(self, key: str) -> Any:
        return attributes(self)[key]

    def __setitem__(self, key: str, value: A) -> None:
        if not isinstance(key, str):
            raise TypeError(f"The keys of an nnx.Dict are attribute names, so they must be strings, got {key!r}.")
        setattr(self, key, value)

    def __delitem__(self, key: str) -> None:
        if key not in attributes(self):
            raise KeyError(key)
        delattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return iter(attributes(self))

    def __len__(self) -> int:
        return len(attributes(self))

    def __contains__(self, key: object) -> bool:
        return key in attributes(self)

    def __getattr__(self, name: str) -> Any:
        has = list(attributes(self))
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'; it has {has}.")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self is other or attributes(self) == attributes(other)

    __hash__ = Module.__hash__  # type: ignore[assignment]


class Sequential(Module):
    """Applies functions and Modules one after the other.

    What one returns is given to the next: a tuple as several arguments, a dict as keywords. `rngs=` is passed to each
    one that has a parameter of that name. So is every keyword argument of the call, as in Flax 0.12.12; with a JAX
    before 0.11.1, as in Flax 0.12.8, the first one gets them. Iterating yields the functions and Modules.

    Args:
        *fns: The functions and Modules.

    Example:
        >>> from sonde import nnx
        >>> nnx.Sequential(lambda x: (x, x + 1), lambda a, b: a * b)(3)
        12
    """

    def __init__(self, *fns: Callable[..., Any]):
        self.layers = List(fns)

    def __call__(self, *args: Any, rngs: Any = None, **kwargs: Any) -> Any:
        """Applies all of them in turn, the first to these arguments; returns what the last returns.

        Those that take `rngs` get it. One that cannot be called is a TypeError.
        """
        from sonde.ops.chaining import call_in_turn  # here, so that `import sonde.nnx` does not load it

        if not self.layers:
            return args[0] if len(args) == 1 else args or kwargs or None
        for_all = {} if rngs is None else {"rngs": rngs}
        if follows(0, 12, 12):
            for_all, kwargs = {**kwargs, **for_all}, {}
        return call_in_turn(self._callables(for_all), args, kwargs)

    def __iter__(self) -> Iterator[Callable[..., Any]]:
        return iter(self.layers)

    def _callables(self, keywords: Mapping[str, Any]) -> Iterator[Callable[..., Any]]:
        for i, layer in enumerate(self.layers):
            if not callable(layer):
                raise TypeError(f"Sequential.layers[{i}] is not callable: {layer!r}.")
            yield _with_keywords(layer, keywords, f"Sequential.layers[{i}]") if keywords else layer


def _with_keywords(layer: Callable[..., Any], keywords: Mapping[str, Any], place: str) -> Callable[..., Any]:
    """A layer with those of the keywords that it takes."""

    def call(*args: Any, **kwargs: Any) -> Any:
        taken = _taken(layer, len(args), keywords)
        if follows(0, 12, 12) and (twice := sorted(kwargs.keys() & taken.keys())):
            raise TypeError(
                f"{place} gets {twice} twice: in the dict that the layer before returned, and as keyword arguments of "
                "the call."
            )
        return layer(*args, **{**kwargs, **taken})

    return call


def _taken(layer: Callable[..., Any], n_positions: int, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords that a function takes if its first parameters are given by position."""
    try:
        parameters = inspect.signature(layer).parameters.values()
    except (TypeError, ValueError):  # builtins have no signature
        return {}
    by_position = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    positional_names = {p.name for p in by_position[:n_positions] if p.kind is p.POSITIONAL_OR_KEYWORD}
    if follows(0, 12, 12) and any(p.kind is p.VAR_KEYWORD for p in parameters):
        return {name: value for name, value in keywords.items() if name not in positional_names}
    accepted = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)} - positional_names
    return {name: value for name, value in keywords.items() if name in accepted}
