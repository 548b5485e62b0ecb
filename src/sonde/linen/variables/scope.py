"""Scopes: the variables of a running module.

A `Run` is one execution of a module function: one `init` or `apply`, or the body of one lifted transform. It owns the
variables (a nested dict per collection), knows which collections may change, and the trace it runs under. A `Scope` has
the variables and random streams of one module in a run. Scopes are cheap and made again whenever a module is; what must
outlive them (variables, counts of random keys) belongs to the run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import jax
import numpy as np

from sonde import _jax
from sonde._key_paths import key_of
from sonde.errors import (
    InvalidRngError,
    InvalidScopeError,
    JaxTransformError,
    ModifyScopeVariableError,
    NameInUseError,
    ScopeCollectionNotFound,
    ScopeParamNotFoundError,
    ScopeParamShapeError,
    ScopeVariableNotFoundError,
)
from sonde.linen.flax_names.scope_names import ScopeNames
from sonde.linen.sharding import meta
from sonde.linen.variables.filters import Filter, matches
from sonde.linen.variables.frozen_dict import unfreeze
from sonde.linen.variables.rng import Counts, Stream

T = TypeVar("T")
Path = tuple[str, ...]
KeepsSown = Callable[["Scope", str, str, bool], bool]
_MISSING: Any = object()


def path_text(path: Path) -> str:
    """A module path as messages show it: `/encoder/Dense_0`."""
    return "/" + "/".join(path)


@dataclasses.dataclass(slots=True, eq=False, kw_only=True, repr=False)
class Run:
    """One execution of a module function.

    Attributes:
        mutable: Which collections may change.
        initializing: Whether this is an `init`.
        capture: The `capture_intermediates` argument: which method outputs to sow.
        outer: The run that started this one through a lifted transform.
        keeps_sown: Whether this run can keep a value sown into a collection: a transform keeps only the collections
            that it maps or carries. Called with the scope, the collection, the name, and whether values are appended.
            None: always.
        adopted: Modules that were given to others as attributes, by the identity of the original, so that one
            object given twice is one submodule. Holds the originals to keep the identities from being reused.
        trace: The JAX trace that the run's variables belong to.
        live: Whether it is still active.
        root: The outermost run around this one, or itself.
        roots, gather, sown, level: For `sites`: the outermost scopes, the handler that collects values from
            inside transforms, what was sown so far, and the number of the run among the active ones.
    """

    mutable: Filter
    initializing: bool = False
    capture: bool | Callable[..., bool] = False
    outer: Run | None = None
    keeps_sown: KeepsSown | None = None
    adopted: dict[int, tuple[Any, Any]] = dataclasses.field(default_factory=dict)
    trace: Any = dataclasses.field(default_factory=_jax.current_trace)
    live: bool = True
    root: Run = dataclasses.field(init=False)
    roots: Sequence[Scope] = ()
    gather: Any = None
    sown: set[tuple[Path, str, str]] = dataclasses.field(default_factory=set)
    level: int = 0

    def __post_init__(self) -> None:
        self.root = self if self.outer is None else self.outer.root

    def is_mutable(self, collection: str) -> bool:
        """Whether a collection may change."""
        return matches(self.mutable, collection)

    def inner(self, mutable: Filter, keeps_sown: KeepsSown | None = None) -> Run:
        """A run inside a lifted transform of this one."""
        return Run(
            mutable=mutable,
            initializing=self.initializing,
            capture=self.capture,
            outer=self,
            keeps_sown=keeps_sown,
        )

    def at_own_level(self) -> bool:
        """Whether the current trace is the one that the run began in."""
        return _jax.current_trace() is self.trace


def check_no_dead_tracers(tree: object, collection: str, path: Path) -> None:
    """Raises if a variable holds a tracer of a transform that has ended.

    Raises:
        JaxTransformError: A module was called, and set or made a variable, inside a plain JAX transform.
    """
    for key_path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if _jax.has_ended(leaf):
            names = [str(key_of(key)) for key in key_path]
            raise JaxTransformError(
                f"variable {path_text((*path, *names))} in collection {collection!r} was set inside a JAX transform "
                "(jax.jit, jax.lax.scan, ...) to a value that does not exist outside it; use the transform of the "
                "same name in sonde.linen, or create the variable before the transform"
            )


class Scope(ScopeNames):
    """The variables, random streams and taken names of one module.

    Attributes:
        run: The run it belongs to.
        path: The names of the modules from the outermost to this one.
        debug_path: The same with the lifted transforms around each: `("layers", "vmap(jit(Dense_0))")`.
        streams: Random streams by name.
        counts: How many keys were drawn here.
    """

    __slots__ = (
        "__weakref__",  # packages keep data by scope
        "_names",
        "_roots",
        "_tail",
        "counts",
        "debug_path",
        "parent",
        "path",
        "run",
        "streams",
    )

    def __init__(
        self,
        run: Run,
        roots: dict[str, Any],
        *,
        path: Path = (),
        debug_path: Path | None = None,
        tail: Path = (),
        streams: dict[str, Stream] | None = None,
        counts: Counts | None = None,
        parent: Scope | None = None,
        names: dict[str, set[str | None]] | None = None,
    ) -> None:
        self.run = run
        self.path = path
        self.debug_path = path if debug_path is None else debug_path
        self.parent = parent
        self.streams = streams if streams is not None else {}
        self.counts = counts if counts is not None else Counts()
        self._roots = roots
        self._tail = tail
        self._names: dict[str, set[str | None]] = names if names is not None else {}

    @property
    def name(self) -> str | None:
        """The last name of the path, None at the root."""
        return self.path[-1] if self.path else None

    @property
    def path_text(self) -> str:
        """The path as messages show it."""
        return path_text(self.path)

    @property
    def identity(self) -> tuple[int, Path]:
        """A key that is equal for two scopes with the same variables."""
        return id(self._roots), self._tail

    def ancestors(self) -> Iterator[Scope]:
        """The scope itself and those around it, from the inside out, up to the transform or the root."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    def check_live(self) -> None:
        """Raises if the run has ended."""
        if not self.run.live:
            raise InvalidScopeError(
                f"module {self.path_text} was used after the init, apply or transformed function it belongs to has "
                "returned; modules and variables cannot be kept from one call to the next"
            )

    # ----------------------------------------------------------------------------------------------- names

    def reserve(self, name: str, collection: str | None, *, what: str, owner: str) -> None:
        """Takes a name for a submodule (`collection=None`) or for a variable of a collection.

        Raises:
            NameInUseError: A submodule has it, or a variable of the same collection.
        """
        if self.is_reserved(name, collection):
            taken = "a submodule" if None in self._names[name] else "a variable"
            raise NameInUseError(
                f"could not create {what} {name!r} in {owner} at {self.path_text}: the name is in use by {taken}"
            )
        self._names.setdefault(name, set()).add(collection)

    def is_reserved(self, name: str, collection: str | None) -> bool:
        """Whether a name is taken for a submodule (None) or for a variable of the collection."""
        taken = self._names.get(name)
        return bool(taken) and (collection is None or None in taken or collection in taken)

    def submodule_names(self) -> frozenset[str]:
        """The names that submodules have taken."""
        return frozenset(name for name, taken in self._names.items() if None in taken)

    def take_names(self, names: Iterable[str]) -> None:
        """Reserves names of submodules that exist outside a transform."""
        for name in names:
            self._names.setdefault(name, set()).add(None)

    def rewound(self) -> Scope:
        """The same scope with all names free again, for another call of a compact method."""
        return Scope(
            self.run,
            self._roots,
            path=self.path,
            debug_path=self.debug_path,
            tail=self._tail,
            streams=self.streams,
            counts=self.counts,
            parent=self.parent,
        )

    def child(self, name: str) -> Scope:
        """The scope of a submodule."""
        return Scope(
            self.run,
            self._roots,
            path=(*self.path, name),
            debug_path=(*self.debug_path, name),
            tail=(*self._tail, name),
            streams={key: stream.at(name) for key, stream in self.streams.items()},
            counts=self.counts.at(name),
            parent=self,
        )

    def descend(self, names: Path) -> Scope:
        """The scope of a submodule further inside."""
        scope = self
        for name in names:
            scope = scope.child(name)
        return scope

    # ----------------------------------------------------------------------------------------------- variables

    def collection(self, name: str) -> Mapping[str, Any]:
        """The variables of a collection in this scope; empty if there are none."""
        variables = self._roots.get(name, {})
        for part in self._tail:
            if not isinstance(variables, Mapping):
                return {}
            variables = variables.get(part, {})
        return variables if isinstance(variables, Mapping) else {}

    def has_collection(self, name: str) -> bool:
        """Whether a collection was given, or made, anywhere in the run."""
        return name in self._roots

    def collections(self) -> dict[str, Any]:
        """All variables in this scope, as a dict of collections without empty ones."""
        collections = {name: self.collection(name) for name in self._roots}
        return {name: tree for name, tree in collections.items() if tree or not self._tail}

    def _writable(self, name: str) -> dict[str, Any]:
        variables = self._roots.setdefault(name, {})
        for part in self._tail:
            variables = variables.setdefault(part, {})
        return variables

    def has(self, collection: str, name: str) -> bool:
        """Whether a variable exists."""
        return name in self.collection(collection)

    def get(self, collection: str, name: str, default: Any = None) -> Any:
        """The value of a variable, in its box if it has one, or `default`."""
        return self.collection(collection).get(name, default)

    def is_mutable(self, collection: str) -> bool:
        """Whether a collection may change."""
        return self.run.is_mutable(collection)

    def put(self, collection: str, name: str, value: Any) -> None:
        """Sets a variable.

        Raises:
            ModifyScopeVariableError: The collection may not change.
        """
        self.check_live()
        if not self.is_mutable(collection):
            raise ModifyScopeVariableError(
                f"cannot set variable {name!r} of module {self.path_text}: collection {collection!r} is immutable; "
                f"pass mutable={[collection]!r} to apply"
            )
        self._writable(collection)[name] = value

    def replace(self, collection: str, tree: Mapping[str, Any]) -> None:
        """Sets all variables of a collection in this scope."""
        tree = _ordered(tree, self.collection(collection))
        if not self._tail:
            self._roots[collection] = tree
        elif tree:
            variables = self._writable(collection)
            # In place: the dict is a part of the collection of the scope around this one.
            variables.clear()
            variables.update(tree)

    def variable(
        self,
        collection: str,
        name: str,
        init_fn: Callable[..., Any] | None = None,
        *args: Any,
        unbox: bool = True,
        **kwargs: Any,
    ) -> Variable[Any]:
        """A reference to a variable, which is made if it does not exist.

        Raises:
            ScopeVariableNotFoundError: It does not exist and cannot be made.
            ScopeCollectionNotFound: The same, and the collection is empty.
        """
        self.check_live()
        variable = Variable(self, collection, name, unbox=unbox)
        if self.has(collection, name):
            return variable
        if init_fn is None or not self.is_mutable(collection):
            raise self._absent(f"variable {name!r}", collection, ScopeVariableNotFoundError)
        self.put(collection, name, init_fn(*args, **kwargs))
        return variable

    def param(self, name: str, init_fn: Callable[..., Any], *args: Any, unbox: bool = True, **kwargs: Any) -> Any:
        """The value of a parameter, which is made during `init`.

        Raises:
            ScopeParamShapeError: The given parameter has a shape other than the initializer's.
            ScopeParamNotFoundError: The given parameters do not have it.
            ScopeCollectionNotFound: The same, and there are no parameters at all.
        """
        self.check_live()
        # None may be the value of a parameter.
        value = self.get("params", name, _MISSING)
        if value is not _MISSING:
            self._check_shape(name, value, init_fn, args, kwargs)
        elif not self.is_mutable("params"):
            raise self._absent(f"parameter {name!r}", "params", ScopeParamNotFoundError)
        else:
            value = init_fn(self.make_rng("params"), *args, **kwargs)
            self.put("params", name, value)
        return meta.unbox(value) if unbox else value

    def _absent(self, what: str, collection: str, error: type[Exception]) -> Exception:
        """The error for a variable that the module needs, but that was not given and must not be made."""
        present_names = sorted(map(str, self.collection(collection)))
        if present_names:
            return error(
                f"module {self.path_text} needs {what}, which collection {collection!r} does not have; it has "
                f"{present_names}"
            )
        make_it = "" if collection == "params" else f", or mutable={[collection]!r}"
        kind = error if self._roots.get(collection) else ScopeCollectionNotFound
        return kind(
            f"module {self.path_text} needs {what}, but collection {collection!r} has nothing for it; pass variables "
            f"that were made by init of the same module{make_it}"
        )

    def _check_shape(
        self, name: str, value: object, init_fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        value_leaves = jax.tree.leaves(meta.unbox(value))
        # The initializer is only traced: shapes are compared, values are not computed.
        expected = jax.tree.leaves(jax.eval_shape(lambda: meta.unbox(init_fn(_any_key(), *args, **kwargs))))
        for ours, theirs in zip(value_leaves, expected, strict=False):
            # A leaf without a shape (a Python number, an object) is not checked.
            if np.shape(ours) != np.shape(theirs):
                raise ScopeParamShapeError(
                    f"parameter {name!r} of module {self.path_text} was given with shape {np.shape(ours)}, but its "
                    f"initializer makes shape {np.shape(theirs)}"
                )

    # ----------------------------------------------------------------------------------------------- random keys

    def make_rng(self, name: str = "params") -> jax.Array:
        """A new key of a stream; a stream that was not given is replaced by `params`.

        Raises:
            InvalidRngError: Neither was given.
        """
        self.check_live()
        if name not in self.streams:
            if "params" not in self.streams:
                raise InvalidRngError(
                    f"module {self.path_text} needs a random key of stream {name!r}, but rngs has "
                    f"{sorted(self.streams) or 'no streams'}; pass rngs={{{name!r}: jax.random.key(...)}}"
                )
            name = "params"
        return self.streams[name].at(self.counts.next(name)).key()


def _ordered(tree: Mapping[str, Any], like: object) -> dict[str, Any]:
    """A tree with its keys in the order that they have in another one; JAX sorts them."""
    if not isinstance(like, Mapping):
        return dict(tree)
    keys = [*(name for name in like if name in tree), *(name for name in tree if name not in like)]
    return {k: _ordered(v, like.get(k)) if isinstance(v := tree[k], Mapping) else v for k in keys}


def _any_key() -> Any:
    return jax.random.key(0)


class Variable(Generic[T]):
    """A reference to a variable of a module; assigning to `value` sets it.

    Attributes:
        collection: The collection it belongs to.
        name: Its name.
    """

    __slots__ = ("_unbox", "collection", "name", "scope")

    def __init__(self, scope: Scope, collection: str, name: str, unbox: bool = True) -> None:
        self.scope = scope
        self.collection = collection
        self.name = name
        self._unbox = unbox

    def on(self, scope: Scope) -> Variable[T]:
        """The same variable in another scope."""
        return Variable(scope, self.collection, self.name, unbox=self._unbox)

    @property
    def value(self) -> T:
        """The value; in its box if the variable was requested with `unbox=False`."""
        value = self.scope.get(self.collection, self.name)
        return meta.unbox(value) if self._unbox else value

    @value.setter
    def value(self, value: T) -> None:
        boxes = self.scope.get(self.collection, self.name, None) if self._unbox else None
        self.scope.put(self.collection, self.name, meta.boxed_like(boxes, value))

    def is_mutable(self) -> bool:
        """Whether the value may be set."""
        return self.scope.is_mutable(self.collection)


def open_collections(variables: Mapping[str, Any], mutable: Filter) -> dict[str, Any]:
    """The user's variables, with a copy of each collection that may change: the user's dicts stay as they are."""
    return {name: unfreeze(tree) if matches(mutable, name) else tree for name, tree in variables.items()}
