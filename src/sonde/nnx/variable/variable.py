"""Variables: the boxes that hold a model's arrays.

A Variable has a value, a type (its class says what it is for: a parameter, a batch statistic, ...) and metadata. It
can be used like the array it holds, and written in place with `v[...] = x`. It is a pytree node with one child, the
value, and its metadata as the static part.

Sharp edges:

* A Variable belongs to the trace level it was made at. Writing to it from inside another trace (a function under plain
  `jax.jit` that closes over it) raises `TraceContextError`, because a tracer would outlive its trace.
* `==` compares values, so Variables cannot be hashed; compare identities with `is`.
* The value is kept in a small object of its own, the cell (`cell.py`). A jitted call reads and writes the cells of
  thousands of Variables; attributes of a class with `__getattr__` take twice as long to read, three times to write.
* With `ref=True` or `hijax=True` the cell holds array references, and writing goes through to them at any trace level;
  see `array_references`.
* Attributes cannot be set; metadata is set with `set_metadata` and read as attributes. Other attributes are those of
  the value (`v.shape`, `v.dtype`, `v.at`).
"""

from __future__ import annotations

import copy as copy_module
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

import jax
import numpy as np

from sonde._array_text import human_size, size_and_bytes
from sonde._jax import is_outermost, trace_level
from sonde.errors import TraceContextError
from sonde.nnx.rendering import Rendered, Writer
from sonde.nnx.structure import epoch
from sonde.nnx.variable import eager_sharding
from sonde.nnx.variable.array_like import ArrayLike
from sonde.nnx.variable.array_references import REFERENCES, is_reference, load, new_references, write_through
from sonde.nnx.variable.cell import Cell
from sonde.nnx.variable.eager_sharding import place_value
from sonde.nnx.variable.metadata import HOOKS, REQUIRED, Metadata, VariableMetadata, shared

A = TypeVar("A")
_MISSING: Any = object()
_SLOTS = ("_cell", "_level", "_metadata")
_value_key = jax.tree_util.GetAttrKey("value")


class Variable(ArrayLike, Rendered, Generic[A]):
    """A box that holds an array (or any pytree) together with metadata.

    Subclass it to make your own type; filters select Variables by type.

    Args:
        value: What the Variable holds; or a `VariableMetadata`, as wrapped initializers return.
        eager_sharding: Whether to place the value as `out_sharding` says when the Variable is made.
        **metadata: Anything worth knowing about the value. Names with a meaning: `out_sharding` (axis names of a
            mesh, one per dimension), `mesh`, `sharding_rules`, `tag` (what a string filter matches), `ref=True` (keep
            the array in a `jax.Ref`), `hijax=True` (keep each array of a tree in one) and the hooks `on_get_value`,
            `on_set_value`, `on_create_value`, `on_add_axis`, `on_remove_axis`.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> v = nnx.Param(jnp.zeros(2), role="bias")
        >>> v[...] += 1
        >>> v.role, float(v.sum())
        ('bias', 2.0)
    """

    __slots__ = _SLOTS

    _cell: Cell
    _level: Any
    _metadata: Metadata

    required_metadata = frozenset(REQUIRED)

    def __init__(self, value: A | VariableMetadata, *, eager_sharding: bool | None = None, **metadata: Any):
        if isinstance(value, VariableMetadata):
            metadata = {**value.entries(), **metadata}
            value = cast(A, value.raw_value)
        declared = type(self)._class_hooks
        if eager_sharding is None:
            eager_sharding = metadata.pop("eager_sharding", None)
        if metadata or declared or eager_sharding is not None:
            meta = shared({**declared, **_canonical(metadata), "eager_sharding": _eager(eager_sharding)})
        else:
            meta = shared({"eager_sharding": _eager(None)})
        # Hooks get the Variable itself, so it must be complete before they run.
        if meta.hooked or type(self).create_value is not Variable.create_value:
            _set_level(self, trace_level())
            _set_metadata(self, meta)
            _set_cell(self, Cell(value))
            value = meta.run_hooks("on_create_value", self, self.create_value(cast(A, value)))
        if "out_sharding" in meta:
            value = place_value(value, meta)
        if meta.by_reference or type(value) in REFERENCES:
            value = new_references(self, value, meta)
        _set_cell(self, Cell(value))
        _set_level(self, trace_level())
        _set_metadata(self, meta)

    _class_hooks: ClassVar[dict[str, Callable[..., Any]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._class_hooks = {n: vars(k)[n] for n in HOOKS for k in reversed(cls.__mro__) if n in vars(k)}
        _register(cls)

    # ----------------------------------------------------------------------------------------------- value

    @property
    def value(self) -> A:
        """The value; the same as `get_value()` and `set_value(x)`."""
        return self.get_value()

    @value.setter
    def value(self, value: A) -> None:
        self.set_value(value)

    def get_value(self, *, index: Any = _MISSING) -> Any:
        """The value, after the `on_get_value` hooks; with `index`, the part of it at that index."""
        value = self._cell.value
        if self._metadata.reads_hooked:
            value = load(value) if self._metadata.by_reference else value
            value = self._metadata.run_hooks("on_get_value", self, value)
        return value if index is _MISSING else value[index]

    def set_value(self, value: Any, *, index: Any = _MISSING) -> None:
        """Replaces the value, after the `on_set_value` hooks; with `index`, the part of it at that index.

        Raises:
            TraceContextError: The Variable was made at another trace level.
        """
        self._check_level()
        if index is not _MISSING:
            value = _with_item(self._held(), index, value)
        if self._metadata.hooked:
            value = self._metadata.run_hooks("on_set_value", self, value)
        _set_value(self, value)

    def get_raw_value(self) -> A:
        """What the Variable holds, without running hooks; with `ref=True` the array reference."""
        return self._cell.value if self._metadata["ref"] else self._held()

    def set_raw_value(self, value: A, *, _unsafe_bypass_check: bool = False) -> None:
        """Replaces what the Variable holds, without running hooks; an array goes into the array reference, if any."""
        if not _unsafe_bypass_check:
            self._check_level()
        _set_value(self, value)

    def _held(self) -> Any:
        """The value, without running hooks, whether it is kept in array references or not."""
        return load(self._cell.value) if self._metadata.by_reference else self._cell.value

    @property
    def _raw_value(self) -> Any:
        return self._cell.value

    @property
    def raw_value(self) -> A:
        """What the Variable holds, without running hooks."""
        return self.get_raw_value()

    def create_value(self, value: A) -> A:
        """The value that a new Variable made with `value` holds; for subclasses to override."""
        return value

    def __getitem__(self, index: Any) -> Any:
        if index is Ellipsis:
            value = self.get_value()
            if isinstance(value, (jax.Array, np.ndarray)):
                return value
            return value[index]
        return self.get_value(index=index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.set_value(value, index=index)

    def __delitem__(self, index: Any) -> None:
        self._check_level()
        value = copy_module.copy(self._held())
        del value[index]
        _set_value(self, value)

    def _check_level(self) -> None:
        if self._metadata.keeps_out and self._is_copy_inside():
            raise TraceContextError(
                f"A {type(self).__name__} with hijax=True was changed inside a function under a transform of JAX, "
                "where its value is an array: the caller would not see the change. Make it with ref=True, or pass "
                "the object that holds it to an nnx transform."
            )
        if self._level is not trace_level() and not self._metadata.by_reference:
            raise TraceContextError(
                f"A {type(self).__name__} was changed at a trace level other than the one it was made at. Inside a "
                f"transformed function, change only Variables of its own arguments: pass the object that holds this "
                f"{type(self).__name__} as an argument of an nnx transform (nnx.jit, nnx.grad, ...)."
            )

    def _check_metadata_may_change(self) -> None:
        self._check_level()
        if self._is_copy_inside():
            raise TraceContextError(
                f"The metadata of a {type(self).__name__} with hijax=True was changed inside a function under a "
                "transform of JAX: only the value reaches the caller. Set it outside, or pass the object that holds "
                "the Variable to an nnx transform."
            )

    def _is_copy_inside(self) -> bool:
        """Whether JAX made this Variable, with `hijax=True`, of one outside for a function it is tracing."""
        return self._metadata.is_inside and not is_outermost(trace_level())

    # -------------------------------------------------------------------------------------------- metadata

    def get_metadata(
        self, name: str | None = None, default: Any = _MISSING, *, exclude_required: bool | None = None
    ) -> Any:
        """One entry of the metadata, or all as a new dict.

        Args:
            name: The entry; None for all.
            default: What to return when there is no such entry.
            exclude_required: Leave out the entries that every Variable has.

        Raises:
            KeyError: There is no such entry and no default.
        """
        if name is None:
            return {k: v for k, v in self._metadata.items() if not (exclude_required and k in REQUIRED)}
        return self._metadata[name] if default is _MISSING else self._metadata.get(name, default)

    def has_metadata(self, name: str) -> bool:
        """Whether there is an entry of that name."""
        return name in self._metadata

    def set_metadata(self, *args: Any, **kwargs: Any) -> None:
        """Sets metadata: `set_metadata(name, value)`, `set_metadata(name=value)`, or a dict that replaces all."""
        self._check_metadata_may_change()
        if len(args) == 1 and not kwargs:
            entries = {"eager_sharding": self._metadata["eager_sharding"], **_canonical(dict(args[0]))}
        elif len(args) == 2 and not kwargs:
            entries = {**self._metadata, args[0]: args[1]}
        elif kwargs and not args:
            entries = {**self._metadata, **kwargs}
        else:
            raise TypeError(
                f"set_metadata takes a dict, a name and a value, or keywords; got args={args}, kwargs={kwargs}."
            )
        metadata, held = shared(entries), self._held()
        if metadata.by_reference != self._metadata.by_reference:
            _set_cell(self, Cell(new_references(self, held, metadata)))
        _set_metadata(self, metadata)
        epoch.bump()

    def del_metadata(self, name: str) -> None:
        """Removes one entry of the metadata."""
        self._check_metadata_may_change()
        _set_metadata(self, self._metadata.without(name))
        epoch.bump()

    def __getattr__(self, name: str) -> Any:
        if name in _SLOTS:  # not yet set, as while unpickling
            raise AttributeError(name)
        metadata = self._metadata
        if name in metadata and name not in HOOKS:
            return metadata[name]
        return getattr(self.get_value(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(getattr(type(self), name, None), property):
            object.__setattr__(self, name, value)
            return
        raise AttributeError(
            f"Cannot set attribute '{name}' of a {type(self).__name__}. Metadata is set with "
            f"variable.set_metadata({name}=value), the value with variable[...] = value or variable.set_value(value)."
        )

    def __delattr__(self, name: str) -> None:
        raise AttributeError(
            f"Cannot delete attribute '{name}' of a {type(self).__name__}; use variable.del_metadata('{name}')."
        )

    @property
    def hijax(self) -> bool:
        """Whether the value is kept in array references, one for every array in it."""
        return self._metadata["hijax"]

    @property
    def ref(self) -> bool:
        """Whether the value is kept in an array reference, a `jax.Ref`."""
        return self._metadata["ref"]

    @property
    def type(self) -> type[Self]:
        """The class of the Variable."""
        return type(self)

    @property
    def var_type(self) -> type[Self]:
        """The class of the Variable."""
        return type(self)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value."""
        return self.get_value().shape

    @property
    def sharding_names(self) -> Any:
        """The `out_sharding` entry of the metadata, or None."""
        return self._metadata.get("out_sharding")

    def add_axis(self, axis_index: int, axis_name: str | None) -> None:
        """Runs the `on_add_axis` hooks, as transforms do when they add an axis to the value."""
        self._axis_hooks("on_add_axis", axis_index, axis_name)

    def remove_axis(self, axis_index: int, axis_name: str | None) -> None:
        """Runs the `on_remove_axis` hooks, as transforms do when they take an axis from the value."""
        self._axis_hooks("on_remove_axis", axis_index, axis_name)

    def _axis_hooks(self, which: str, axis_index: int, axis_name: str | None) -> None:
        hooks = self._metadata.get(which, ())
        for hook in hooks if isinstance(hooks, (tuple, list)) else (hooks,):
            hook(self, axis_index, axis_name)

    # ---------------------------------------------------------------------------------- making and copying

    @classmethod
    def _make(cls, value: A, metadata: Metadata) -> Self:
        """Makes a Variable at the current trace level, without `__init__` and hooks."""
        variable = object.__new__(cls)
        _set_cell(variable, Cell(value))
        _set_level(variable, trace_level())
        _set_metadata(variable, metadata)
        return variable

    @classmethod
    def from_metadata(cls, value: A, attributes: Mapping[str, Any]) -> Self:
        """A Variable with this value and metadata, without running hooks."""
        variable = cls._make(value, shared(_canonical(dict(attributes))))
        if variable._metadata.by_reference and not is_reference(value):
            variable._cell.value = new_references(variable, value, variable._metadata)
        return variable

    def replace(self, value: A = _MISSING, **updates: Any) -> Self:
        """A new Variable with another value or other metadata."""
        metadata = self._metadata.replaced(**_canonical(updates)) if updates else self._metadata
        variable = type(self)._make(self._held() if value is _MISSING else value, metadata)
        if metadata.by_reference:
            variable._cell.value = new_references(variable, variable._cell.value, metadata)
        return variable

    def copy(self, value: A = _MISSING, **updates: Any) -> Self:
        """A new Variable with the same value and metadata, except for what is given."""
        return self.replace(value, **updates)

    def to_state(self, value: A = _MISSING, **updates: Any) -> Self:
        """The same as `copy`; kept for code that was written when states held something other than Variables."""
        return self.copy(value, **updates)

    def copy_from(self, other: Variable[A]) -> None:
        """Takes over the value and the metadata of a Variable of the same type.

        Raises:
            ValueError: The other Variable has another type.
        """
        if type(other) is not type(self):
            raise ValueError(
                f"{type(self).__name__}.copy_from takes a Variable of its own type, got a {type(other).__name__}."
            )
        if self is not other:
            self.update_from_state(other)

    def update_from_state(self, variable_state: Variable[A]) -> None:
        """Takes over the value and the metadata of another Variable, without running hooks."""
        self._check_level()
        _set_value(self, variable_state._held())
        metadata = variable_state._metadata
        if self._metadata is not metadata:
            if metadata.by_reference or self._metadata.by_reference:  # its own `hijax` and `ref` stay
                metadata = metadata.replaced(hijax=self._metadata["hijax"], ref=self._metadata["ref"])
            changed = self._metadata != metadata
            _set_metadata(self, metadata)
            if changed:
                epoch.bump()

    def __copy__(self) -> Self:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        memo[id(self)] = copied_variable = type(self)._make(cast(A, None), copy_module.deepcopy(self._metadata, memo))
        held = copy_module.deepcopy(self._held(), memo)
        copied_variable._cell.value = (
            new_references(copied_variable, held, copied_variable._metadata)
            if copied_variable._metadata.by_reference
            else held
        )
        return copied_variable

    def __reduce__(self) -> Any:
        return _unpickle, (type(self), self._held(), dict(self._metadata))

    # --------------------------------------------------------------------------------------------- display

    def _nnx_text(self, writer: Writer, depth: int) -> str:
        held = self.get_raw_value()
        size, n_bytes = size_and_bytes(held)
        note = f" # {size:,} ({human_size(n_bytes)})" if size else ""
        entries = [f"value={writer.write(held, depth + 1)}"]
        entries += [f"{k}={v!r}" for k, v in self._metadata.items() if k not in REQUIRED]
        return writer.lines(f"{type(self).__name__}(", entries, ")", depth, note)

    def _nnx_attributes(self) -> Mapping[str, object]:
        return {"value": self.get_raw_value(), **self.get_metadata(exclude_required=True)}


_set_cell = cast(Callable[[Any, Any], None], Variable.__dict__["_cell"].__set__)
_set_level = cast(Callable[[Any, Any], None], Variable.__dict__["_level"].__set__)
_set_metadata = cast(Callable[[Any, Any], None], Variable.__dict__["_metadata"].__set__)


def _set_value(variable: Variable[Any], value: object) -> None:
    """Replaces what a Variable holds, without hooks or checks; array references that fit are written to instead."""
    if variable._metadata.by_reference:
        write_through(variable, value)
    else:
        variable._cell.value = value


def _eager(asked: bool | None) -> bool:
    return eager_sharding.using_eager_sharding() if asked is None else bool(asked)


def _canonical(metadata: dict[str, Any]) -> dict[str, Any]:
    """Metadata with the older names of `out_sharding` replaced by it."""
    for old_name in ("sharding_names", "sharding"):
        if old_name in metadata:
            metadata["out_sharding"] = metadata.pop(old_name)
    return metadata


def _with_item(current: Any, index: Any, value: Any) -> Any:
    """`current` with one item replaced; arrays of JAX are never changed in place."""
    if isinstance(value, Variable):
        value = value.get_value()
    if isinstance(current, Variable):
        current[index] = value
        return current
    if isinstance(current, jax.Array):
        if (
            index is Ellipsis
            and isinstance(value, jax.Array)
            and value.shape == current.shape
            and value.dtype == current.dtype
        ):
            return value  # nothing to scatter
        return current.at[index].set(value)
    container = copy_module.copy(current) if isinstance(current, (list, dict, np.ndarray)) else current
    container[index] = value
    return container


def _unpickle(cls: type[Variable[Any]], value: object, metadata: dict[str, Any]) -> Variable[Any]:
    return cls.from_metadata(value, metadata)


def copied(leaves: Iterable[Any]) -> list[Any]:
    """The leaves, with a copy in place of every Variable."""
    level, new_object = trace_level(), object.__new__
    out = []
    for leaf in leaves:
        if isinstance(leaf, Variable):
            if leaf._metadata.by_reference:
                out.append(leaf.copy())
                continue
            # Written out, because a model has thousands of Variables.
            copied_variable = new_object(type(leaf))
            _set_cell(copied_variable, Cell(leaf._cell.value))
            _set_level(copied_variable, level)
            _set_metadata(copied_variable, leaf._metadata)
            leaf = copied_variable
        out.append(leaf)
    return out


def _flatten(variable: Variable[Any]) -> tuple[tuple[Any], Metadata]:
    return (variable._cell.value,), variable._metadata


def _flatten_with_keys(variable: Variable[Any]) -> tuple[tuple[tuple[Any, Any]], Metadata]:
    return ((_value_key, variable._cell.value),), variable._metadata


def _register(cls: type[Variable[Any]]) -> None:
    def unflatten(metadata: Metadata, children: Any) -> Variable[Any]:
        (value,) = children
        # Inside a function that JAX traces, this is a copy: what is written to it would be lost.
        if metadata["hijax"] and not metadata["ref"] and not is_outermost(trace_level()):
            metadata = metadata.inside()
        return cls._make(value, metadata)

    jax.tree_util.register_pytree_with_keys(cls, _flatten_with_keys, unflatten, _flatten)


_register(Variable)


def value_in(leaf: object) -> Any:
    """The value of a Variable, after its hooks; other leaves as they are."""
    return leaf.get_value() if isinstance(leaf, Variable) else leaf


def held_in(leaf: object) -> Any:
    """What a Variable holds, without its hooks; other leaves as they are."""
    return leaf.get_raw_value() if isinstance(leaf, Variable) else leaf
