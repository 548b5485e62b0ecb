"""How a module gets its parent, its name and its scope, and how modules are copied.

A module that is created while a method of another module runs has that module as its parent. In a compact method it
gets its name and scope at once. In `setup` it waits until it is assigned to an attribute, and is named after that. A
module that was created outside and passed as a field is adopted as soon as its owner has a scope: a copy is made, named
after the field. An object passed to two modules is one submodule, which belongs to the first of them.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

from sonde.errors import AssignSubModuleError, CallShareScopeOnUnboundModuleError
from sonde.flax.flags import flag
from sonde.linen.flax_names.outer_scope import is_flax_scope, scope_on
from sonde.linen.variables.frozen_dict import FrozenDict
from sonde.linen.variables.scope import Scope, Variable

if TYPE_CHECKING:
    from sonde.linen.modules.module import Module


class ModuleBase:
    """Marks the class `Module`, for the files that `module.py` is built on and that must recognize a module."""


def is_module(value: object) -> TypeGuard[Module]:
    """Whether a value is a module."""
    return isinstance(value, ModuleBase)


def is_bound(value: object) -> bool:
    """Whether a value is a module or a variable, which belong to one run and cannot pass through a transform."""
    return isinstance(value, (ModuleBase, Variable))


class _Unspecified(enum.Enum):  # its copies, pickled ones too, are the same object
    """The default of `parent`: the module whose method is running when this one is created."""

    UNSPECIFIED = "unspecified"

    def __repr__(self) -> str:
        return self.value

    __str__ = __repr__


UNSPECIFIED: Any = _Unspecified.UNSPECIFIED


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class ModuleState:
    """The state of a module besides its fields.

    Attributes:
        attached: Whether parent, name and scope are settled.
        in_setup: Whether `setup` is running.
        in_compact: Whether a compact method is running.
        set_up: Whether `setup` has run.
        cursor: How many unnamed submodules of each class the running compact method has made.
        children: The submodules that the module has made, by name.
    """

    attached: bool = False
    in_setup: bool = False
    in_compact: bool = False
    set_up: bool = False
    cursor: dict[str, int] = dataclasses.field(default_factory=dict)
    children: dict[str, Any] = dataclasses.field(default_factory=dict)

    def forget_call(self) -> None:
        """Gets ready for the next call of a compact method."""
        self.in_compact = False
        self.cursor = {}

    def for_transform(self) -> ModuleState:
        """The state of the copy that runs inside a lifted transform: it continues the names from here."""
        return ModuleState(attached=self.attached, in_compact=self.in_compact, cursor=dict(self.cursor))

    def catch_up(self, inner: ModuleState) -> None:
        """Adds the names that the copy inside a lifted transform has given."""
        self.cursor = dict(inner.cursor)


def auto_name(module: Module, parent: Module) -> str:
    """The next free name of the form `Dense_0`."""
    prefix = type(module).__name__
    number = parent._state.cursor.get(prefix, 0)
    parent._state.cursor[prefix] = number + 1
    return f"{prefix}_{number}"


def attach(module: Module) -> None:
    """Gives a module whose fields are set its scope; called by `__post_init__` and again when it gets a name."""
    if not isinstance(module.parent, Scope) and is_flax_scope(module.parent):
        object.__setattr__(module, "parent", scope_on(module.parent))
    state, parent = module._state, module.parent
    if isinstance(parent, Scope):
        object.__setattr__(module, "scope", parent)
    elif parent is not None:
        above: ModuleState = parent._state
        # Elsewhere it would be made anew in each call, with a name that depends on the calls before.
        if above.attached and not (above.in_setup or above.in_compact):
            raise AssignSubModuleError(
                f"submodule {type(module).__name__} was made in {describe(parent)} outside setup and compact "
                "methods; make it in setup, or mark the method with @nn.compact"
            )
        if module.name is None:
            if above.in_setup:
                return  # The attribute that it is assigned to will name it.
            object.__setattr__(module, "name", auto_name(module, parent))
        name = module.name
        assert name is not None
        if not isinstance(name, str):
            raise TypeError(
                f"the name of a submodule must be a str, got {name!r} for {type(module).__name__} in {describe(parent)}"
            )
        if parent.scope is not None:
            parent.scope.reserve(name, None, what="submodule", owner=type(parent).__name__)
            object.__setattr__(module, "scope", parent.scope.child(name))
        above.children[name] = module
    if module.scope is not None:
        adopt_fields(module)
    state.attached = True


def adopt_fields(module: Module) -> None:
    """Makes the modules among a module's fields its submodules; the module must have a scope."""
    for name in fields_of(module):
        value = getattr(module, name)
        if value is not None:
            object.__setattr__(module, name, adopt(module, name, value))


def describe(module: Module) -> str:
    """A module in messages: its class, and its path if it has one."""
    place = f" at {module.scope.path_text}" if module.scope is not None else ""
    return f"{type(module).__name__}{place}"


def frozen_containers(value: object, fn: Callable[[Any, str], Any], suffix: str = "") -> Any:
    """Applies `fn` to the leaves of nested lists, tuples and dicts, with their keys as suffix; freezes the containers.

    Attributes of a module must not change from outside after `setup`, so lists become tuples and dicts FrozenDicts.
    """
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        parts = (frozen_containers(v, fn, f"{suffix}_{k}") for k, v in zip(value._fields, value))  # pyright: ignore
        return type(value)(*parts)
    if isinstance(value, (list, tuple)):
        return tuple(frozen_containers(v, fn, f"{suffix}_{i}") for i, v in enumerate(value))
    if isinstance(value, (dict, FrozenDict)):
        # Visited in the order of a pytree: a module given under two keys is named after the first.
        frozen = {k: frozen_containers(value[k], fn, f"{suffix}_{k}") for k in _sorted(value)}
        return FrozenDict({k: frozen[k] for k in value})
    return fn(value, suffix)


def _sorted(keys: Iterable[Any]) -> list[Any]:
    try:
        return sorted(keys)
    except TypeError:  # keys of several types
        return list(keys)


def adopt(owner: Module, attribute: str, value: object) -> Any:
    """Makes the modules in the value of an attribute submodules of its owner, unless they have an owner."""
    scope = owner.bound_scope("adopt submodules")
    keeps_names = getattr(type(owner), "preserve_adopted_names", flag("flax_preserve_adopted_names"))

    def take(leaf: object, suffix: str) -> Any:
        if not is_module(leaf) or leaf.scope is not None:
            return leaf
        name = f"{attribute}{suffix}"
        if leaf.parent is not None and leaf.name is None:
            object.__setattr__(leaf, "parent", owner)
            object.__setattr__(leaf, "name", name)
            attach(leaf)
            return leaf
        # By the identity of the original: an object that is given to two modules is one submodule.
        original_and_copy = scope.run.adopted.get(id(leaf))
        if original_and_copy is None:
            if keeps_names and leaf.name is not None:
                name = leaf.name
            original_and_copy = (leaf, leaf.clone(parent=owner, name=name))
            scope.run.adopted[id(leaf)] = original_and_copy
        return original_and_copy[1]

    return frozen_containers(value, take)


def fields_of(module: Module) -> Iterator[str]:
    """The names of the fields that a copy must be given."""
    return (f.name for f in dataclasses.fields(module) if f.init and f.name not in ("parent", "name"))


def clone(module: Module, *, parent: object, deep: bool, updates: Mapping[str, Any], reset_names: bool = False) -> Any:
    """A copy of a module under another parent; `deep` copies the modules in its fields too, without their scopes."""
    return _Cloning(deep=deep, reset_names=reset_names).copy(module, parent, updates)


class _Cloning:
    """One call of `clone`: copies each module once."""

    def __init__(self, *, deep: bool, reset_names: bool) -> None:
        self._deep = deep
        self._renamed: dict[str, Any] = {"name": None} if reset_names else {}
        self._copies: dict[int, Any] = {}

    def copy(self, source: Module, parent: object, changes: Mapping[str, Any]) -> Any:
        values = {name: getattr(source, name) for name in fields_of(source)}
        if self._deep:
            for name, value in values.items():
                if contains_module(value):
                    values[name] = frozen_containers(value, self._below)
        return type(source)(**{"name": source.name, **values, "parent": parent, **changes})

    def _below(self, leaf: object, _: str) -> Any:
        if is_module(leaf) and id(leaf) not in self._copies:
            self._copies[id(leaf)] = self.copy(leaf, None, self._renamed)
        return self._copies.get(id(leaf), leaf)


def contains(value: object, is_wanted: Callable[[Any], bool]) -> bool:
    """Whether a value, or an element of its nested containers, is wanted."""
    if isinstance(value, (list, tuple)):
        return any(contains(v, is_wanted) for v in value)
    if isinstance(value, (dict, FrozenDict)):
        return any(contains(v, is_wanted) for v in value.values())
    return is_wanted(value)


def contains_module(value: object) -> bool:
    """Whether a value is a module, or holds one in nested containers."""
    return contains(value, is_module)


def share_scope(module: Module, other: Module, /) -> None:
    """Gives two modules one scope: what either creates gets its name in the scope of the outer one.

    Used in `setup` by a module that wraps another and must not appear in the paths of parameters.

    Args:
        module: One module, usually `self`.
        other: The other module. If it was created by `module`, it takes over the scope of `module`; otherwise `module`
            takes over its scope.

    Raises:
        CallShareScopeOnUnboundModuleError: One of them has no scope yet.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from sonde import linen as nn
        >>> class Twice(nn.Module):
        ...     layer: nn.Module
        ...     def setup(self):
        ...         nn.share_scope(self, self.layer)
        ...     def __call__(self, x):
        ...         return self.layer(self.layer(x))
        >>> sorted(Twice(nn.Dense(3)).init(jax.random.key(0), jnp.ones(3))["params"])
        ['bias', 'kernel']
    """
    scope, other_scope = _bound_scope(module), _bound_scope(other)
    if any(ancestor.identity == scope.identity for ancestor in other_scope.ancestors()):
        _move(other, to=module)
    elif any(ancestor.identity == other_scope.identity for ancestor in scope.ancestors()):
        _move(module, to=other)
    else:
        # Siblings: the module that was given from outside keeps its scope.
        _move(module, to=other)


def _bound_scope(module: Module) -> Scope:
    if module.scope is None:
        raise CallShareScopeOnUnboundModuleError(
            f"nn.share_scope was given {type(module).__name__}, which is not bound to variables; call it in setup, or "
            "in a compact method"
        )
    return module.scope


def _move(module: Module, *, to: Module) -> None:
    """Gives a module, and what it has made, the scope of another one."""
    scope = to.scope
    assert scope is not None
    object.__setattr__(module, "scope", scope)
    for name, child in list(module._state.children.items()):
        if child.parent is module and child is not to:
            child_scope = scope.child(name)
            object.__setattr__(child, "scope", child_scope)
            _move_children(child)


def _move_children(module: Module) -> None:
    scope = module.scope
    assert scope is not None
    for name, child in module._state.children.items():
        if child.parent is module:
            object.__setattr__(child, "scope", scope.child(name))
            _move_children(child)
