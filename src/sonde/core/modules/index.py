"""Modules of any library: what their attributes are, and which attributes lead from one module to another.

A library registers its modules with `register_modules`. Everything else here works by identity: a module is found among
the attributes of another, through lists, dicts, tuples, other pytrees and further modules.
"""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from sonde._key_paths import key_of
from sonde.core.modules.copies import CopyKind
from sonde.core.session.caches import ByIdentity
from sonde.core.session.session import SESSIONS

Path = tuple[Any, ...]


class Origin:
    """What a copy of a module was made from. All origins are equal, so that pytree structures may contain them.

    Attributes:
        ref: A weak reference to the module.
        before: What that module was made from itself.
    """

    __slots__ = ("before", "ref")

    def __init__(self, module: Any, before: Origin | None) -> None:
        self.ref = weakref.ref(module)
        self.before = before

    def __eq__(self, other: object) -> bool:
        return other is None or isinstance(other, Origin)

    def __hash__(self) -> int:
        return hash(None)  # a structure that was made while no capture ran has None here

    def __repr__(self) -> str:
        return "None"


def _no_origin(module: Any) -> Origin | None:
    del module


@dataclasses.dataclass(frozen=True, slots=True)
class ModuleKind:
    """How to inspect the modules of one library.

    Attributes:
        children: The attributes of a module, as pairs of name and value.
        child: One of them, by name; any exception means that there is none.
        stamp: Equal to an earlier result if no module of the library can have changed since; by default never.
        origin: What a module is a copy of, if the library says so.
        is_root: Whether paths may count from an object, even if it was not called.
        copies: How copies of a module are recognized, for a library that does not say what a module is a copy of.
        aliases: For methods that are another name of a method, the name of that method.
        returns: The attribute of which the result of a call of the module is a copy, if any.
        is_part: Whether a module is only how another one works, which calls it: not a call of its own.
    """

    children: Callable[[Any], Iterable[tuple[Any, Any]]]
    child: Callable[[Any, Any], Any] = getattr
    stamp: Callable[[], Hashable] = object
    origin: Callable[[Any], Origin | None] = _no_origin
    is_root: Callable[[Any], bool] = lambda module: True
    copies: CopyKind | None = None
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    returns: Callable[[Any], str | None] = lambda module: None
    is_part: Callable[[Any, Any], bool] = lambda module, of: False


class _Libraries:
    """What the libraries that are loaded have said about their modules.

    Attributes:
        kinds: How to inspect the instances of a class, and of its subclasses.
        without_modules: Types met so far that are not modules and hold none. Arrays and tracers are added when they
            are met.
        told_apart_by: Functions of the positional arguments of a jitted call, from libraries that use one trace for
            several modules.
    """

    __slots__ = ("_kind_of_class", "kinds", "told_apart_by", "without_modules")

    def __init__(self) -> None:
        self.kinds: dict[type, ModuleKind] = {}
        self._kind_of_class = ByIdentity(self._find_kind)
        self.without_modules: set[type] = {int, float, complex, bool, str, bytes, slice, type, type(None), type(...)}
        self.without_modules |= {np.ndarray, np.dtype, type(lambda: 0), type(len), set, frozenset}
        self.told_apart_by: list[Callable[[Sequence[Any]], Hashable]] = []

    def add(self, cls: type, kind: ModuleKind) -> None:
        self.kinds[cls] = kind
        self._kind_of_class.entries.clear()

    def kind_of(self, cls: type) -> ModuleKind | None:
        return self._kind_of_class.of(cls)

    def _find_kind(self, cls: type) -> ModuleKind | None:
        return next((self.kinds[c] for c in cls.__mro__ if c in self.kinds), None)


LIBRARIES = _Libraries()


def kind_of_class(cls: type) -> ModuleKind | None:
    """How to inspect the instances of a class; None if they are not modules."""
    return LIBRARIES.kind_of(cls)


def register_modules(cls: type, kind: ModuleKind) -> None:
    """Makes the instances of a class, and of its subclasses, modules."""
    LIBRARIES.add(cls, kind)
    SESSIONS.look_for_modules = True


def register_no_modules(cls: type) -> None:
    """Registers a class whose instances hold no modules, so that they are not searched."""
    LIBRARIES.without_modules.add(cls)


def register_told_apart(by: Callable[[Sequence[Any]], Hashable]) -> None:
    """Registers a function of a jitted call's positional arguments: calls with different results are traced apart.

    It is for libraries that use one trace for several modules.
    """
    LIBRARIES.told_apart_by.append(by)


def module_kind(value: Any) -> ModuleKind | None:
    """How to inspect a module; None if the value is not a module."""
    return LIBRARIES.kind_of(type(value))


def copy_kind(module: Any) -> CopyKind | None:
    """How the copies of a module are recognized; None if the library says what they are copies of."""
    kind = module_kind(module)
    return None if kind is None else kind.copies


def says_origin(module: Any) -> bool:
    """Whether the library of a module says what its copies are copies of."""
    kind = module_kind(module)
    return kind is not None and kind.origin is not _no_origin


def children_of(value: Any) -> Iterable[tuple[Any, Any]]:
    """What is directly inside a module or container, as pairs of key and value."""
    kind = module_kind(value)
    if kind is not None:
        return kind.children(value)
    if _is_sequence(value):
        return enumerate(value)
    if isinstance(value, Mapping):
        return value.items()
    if _is_plain(value):
        return ()
    leaves_with_paths, _ = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda x: x is not value)
    return [(key_of(path[0]), child) for path, child in leaves_with_paths if path]


def _is_sequence(value: Any) -> bool:
    """Whether a value is a list or a tuple, also one with a class of its own; the parts of a named tuple have names."""
    return isinstance(value, list) or (isinstance(value, tuple) and not hasattr(value, "_fields"))


def _is_plain(value: Any) -> bool:
    cls = type(value)
    if cls in LIBRARIES.without_modules:
        return True
    if isinstance(value, (jax.Array, np.generic, np.dtype)):
        LIBRARIES.without_modules.add(cls)
        return True
    # Lists and dicts with a class of their own, as some libraries keep them, may be leaves to JAX.
    return isinstance(value, type) or (
        jax.tree_util.all_leaves([value]) and not isinstance(value, (list, tuple, Mapping))
    )


def outermost_modules(values: Iterable[Any]) -> Iterator[Any]:
    """The modules among some values and in their containers, but not the modules inside modules."""
    for value in values:
        if holds_modules(value):
            yield from (module for _, module in outermost_in(value, ()))


def holds_modules(value: Any) -> bool:
    """Whether a value is a module, or a container with one. Asked for every argument of every jitted function."""
    cls = type(value)
    if cls in LIBRARIES.without_modules:
        return False
    if cls is not tuple and cls is not list:
        return next(outermost_in(value, ()), None) is not None
    for x in value:  # noqa: SIM110 (a generator takes longer than what it goes through)
        if type(x) not in LIBRARIES.without_modules and holds_modules(x):
            return True
    return False


def outermost_in(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """The outermost modules in one value, with the keys that lead to each."""
    cls = type(value)
    if cls in LIBRARIES.without_modules:
        return
    if cls is not list and cls is not tuple and cls is not dict:
        if module_kind(value) is not None:
            yield path, value
            return
        if _is_plain(value):
            return
    for key, child in children_of(value):
        if type(child) not in LIBRARIES.without_modules:
            yield from outermost_in(child, (*path, key))


def _child(value: Any, key: Any) -> Any:
    kind = module_kind(value)
    if kind is not None:
        return kind.child(value, key)
    if _is_sequence(value) or isinstance(value, Mapping):
        return value[key]
    return dict(children_of(value))[key]


def everything_in(root: Any) -> Iterator[tuple[Path, Any]]:
    """Modules and containers in a module, itself included, with the first path to each."""
    visited: set[int] = set()
    stack: list[tuple[Path, Any]] = [((), root)]
    while stack:
        path, value = stack.pop()
        if type(value) in LIBRARIES.without_modules or id(value) in visited:
            continue
        visited.add(id(value))
        yield path, value
        stack += [((*path, key), child) for key, child in reversed(list(children_of(value)))]


class Index:
    """The modules inside a module, by identity; keeps none of them alive."""

    def __init__(self, root: Any) -> None:
        self._kind = module_kind(root)
        self._paths: dict[int, Path] = {}
        self._texts: dict[int, str] = {}  # of modules that are still at their paths
        self._stamp: Hashable = None  # when all modules were looked for
        self._seen: Hashable = None  # when all known modules were last found at their paths
        self._loose = False  # whether there are lists and dicts inside, which change without a new stamp
        origin = None if self._kind is None else self._kind.origin(root)
        original = None if origin is None else origin.ref()
        if original is None:
            self._build(root)
        else:
            self._guess(root, _indices.of(original))

    def _guess(self, root: Any, original: Index) -> None:
        """Assumes the paths of the root's original. Each is checked when it is used.

        The stamp stays None, which equals no stamp: the index is built when a module is not at its assumed path.
        """
        self._seen, self._loose = None if self._kind is None else self._kind.stamp(), original._loose
        at: dict[Path, Any] = {(): root}
        for path in original._paths.values():  # containers come before the modules in them
            with contextlib.suppress(Exception):
                above = at.get(path[:-1])
                at[path] = at_path(root, path) if above is None else _child(above, path[-1]) if path else root
                self._paths[id(at[path])] = path

    def _build(self, root: Any) -> None:
        self._stamp = self._seen = None if self._kind is None else self._kind.stamp()
        self._paths, self._texts = {}, {}
        for path, value in everything_in(root):
            if module_kind(value) is not None:
                self._paths[id(value)] = path
            elif isinstance(value, (list, dict)):
                self._loose = True

    def path(self, root: Any, module: Any) -> Path | None:
        """The attributes that lead from the root to a module: the first way, if there are several."""
        known_path = self._checked(root, module)
        if known_path is None and self._may_be_old():
            self._build(root)
            known_path = self._checked(root, module)
        return known_path

    def text(self, root: Any, module: Any) -> str | None:
        """The path of a module, as paths are written; None if there is no way."""
        text = self._texts.get(id(module))
        if text is None or not self._is_as_seen():
            path = self.path(root, module)
            if path is None:
                return None
            text = self._texts[id(module)] = "/".join(map(str, path))
        return text

    def paths(self, root: Any) -> Iterable[Path]:
        """The paths of all modules, as they are now."""
        if self._may_be_old():
            self._build(root)
        return self._paths.values()

    def _may_be_old(self) -> bool:
        return self._kind is not None and (self._loose or self._stamp != self._kind.stamp())

    def _is_as_seen(self) -> bool:
        """Whether all known modules are still at their paths."""
        return self._kind is not None and not self._loose and self._seen == self._kind.stamp()

    def _checked(self, root: Any, module: Any) -> Path | None:
        """The known path of the module; None if it is no longer there."""
        path = self._paths.get(id(module))
        if path is None or self._is_as_seen():
            return path
        try:
            return path if at_path(root, path) is module else None
        except Exception:
            return None


_indices = ByIdentity(Index)


def path_between(root: Any, module: Any) -> Path | None:
    """The attributes that lead from one module to another; `()` if they are the same, None if there is no way."""
    return () if root is module else _indices.of(root).path(root, module)


def text_between(root: Any, module: Any) -> str | None:
    """The path that leads from one module to another, as paths are written; None if there is no way."""
    return "" if root is module else _indices.of(root).text(root, module)


def paths_below(root: Any) -> Iterable[Path]:
    """The paths of the modules inside a module, itself included: the first one of each."""
    return _indices.of(root).paths(root)


def at_path(root: Any, path: Path) -> Any:
    """What attributes and keys lead to."""
    for key in path:
        root = _child(root, key)
    return root
