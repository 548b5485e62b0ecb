"""The one mechanism behind all lifted transforms: a module's scope in, pure arguments out, and back.

`Lifting` packs the variables and random streams of some scopes into groups of dicts that a JAX transform can map,
carry or close over. `Lifting.call`, run inside the transform on such groups, opens new scopes on them, runs the
function, and returns the variables that changed, again in groups. `Lifting.publish` writes these to the packed scopes.
A transform only defines what it does to the groups.

`Bridge` works on modules: it finds the scopes of a module and of all modules that it holds or is called with, and
copies these modules onto the scopes inside.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from sonde.errors import TransformedMethodReturnValueError, TransformTargetError
from sonde.linen.modules import attach
from sonde.linen.modules.attach import is_bound
from sonde.linen.modules.methods import wrap
from sonde.linen.modules.module import Module
from sonde.linen.modules.run import changed_variables, perform
from sonde.linen.variables.filters import Both, Either, Filter, partition
from sonde.linen.variables.frozen_dict import unfreeze
from sonde.linen.variables.scope import KeepsSown, Path, Scope, Variable

Groups = tuple[tuple[dict[str, Any], ...], ...]  # by filter, then by packed scope
Methods = Sequence[str] | Mapping[str, Mapping[str, Any]] | None
"""The methods of a class to transform: `__call__` if None; with options of its own for each, or without."""
Body = Callable[..., Any]  # (scopes, *args, **kwargs) -> output


class Lifting:
    """The variables and random streams of some scopes as pure arguments.

    Args:
        scopes: The scopes that the function needs. A scope inside another is packed with it.
        label: The name of the transform, for `Scope.debug_path`.
        variables: Filters of collections, one for each group that goes in.
        changes: Filters of collections, one for each group that comes out; collections that none of them chooses may
            not change.
        rngs: Filters of random streams, one for each group. Streams that none of them chooses do not exist inside.
        keeps_sown: Whether the groups that come out can hold a value that is sown inside, into a collection that may
            change there; see `Run.keeps_sown`. If not, the value is passed on to an outer run.

    Attributes:
        packed: The outermost of the scopes.
        variables: The groups of variables that go in.
        rngs: The groups of streams that go in.
    """

    def __init__(
        self,
        scopes: Sequence[Scope],
        label: str,
        *,
        variables: Sequence[Filter],
        changes: Sequence[Filter],
        rngs: Sequence[Filter],
        keeps_sown: KeepsSown | None = None,
    ) -> None:
        self.packed, self._places = _outermost(scopes)
        self._label = label
        self._changes = tuple(changes)
        self._keeps_sown = keeps_sown
        for scope in self.packed:
            scope.check_live()
        contents = [partition(unfreeze(scope.collections()), variables) for scope in self.packed]
        self.variables = _by_filter(contents, variables)
        self.rngs = _by_filter([partition(scope.streams, rngs) for scope in self.packed], rngs)

    @property
    def mutable(self) -> Filter:
        """Which collections may change outside."""
        return self.packed[0].run.mutable if self.packed else False

    @property
    def places(self) -> tuple[tuple[int, Path], ...]:
        """For each scope, the index of the packed scope that contains it, and its path there."""
        return tuple(self._places)

    def call(
        self, body: Body, variables: Groups, rngs: Groups, *args: Any, mutable: Filter = True, **kwargs: Any
    ) -> tuple[Any, Groups]:
        """Runs `body(scopes, *args, **kwargs)` on groups as they look inside the transform.

        Returns:
            What the body returns, and the variables that may have changed, by the filters in `changes`.
        """
        if not self.packed:  # a method of a module without variables
            return body([], *args, **kwargs), tuple(() for _ in self._changes)
        outer = self.packed[0].run
        # Only what comes out again may change inside: any other change would be lost.
        run = outer.inner(Both(outer.mutable, Both(Either(self._changes), mutable)), self._keeps_sown)
        opened = []
        for i, scope in enumerate(self.packed):
            collections = {name: unfreeze(tree) for group in variables for name, tree in group[i].items()}
            streams = {name: stream for group in rngs for name, stream in group[i].items()}
            *around, name = scope.debug_path or ("",)
            labeled = (*around, f"{self._label}({name})")
            opened.append(
                Scope(run, collections, path=scope.path, debug_path=labeled, streams=streams, counts=scope.counts)
            )
        inner = [opened[i].descend(path) for i, path in self._places]
        output = perform(run, opened, lambda: body(inner, *args, **kwargs))
        changed = [partition(changed_variables(scope), self._changes) for scope in opened]
        return output, _by_filter(changed, self._changes)

    def publish(self, changes: Groups) -> None:
        """Writes what `call` returned, in its form outside the transform, to the packed scopes."""
        for group in changes:
            for scope, collections in zip(self.packed, group):
                for name, tree in collections.items():
                    scope.replace(name, _sorted(tree))

    def counts(self) -> list[Any]:
        """How many random keys have been drawn, for `restore_counts`."""
        return [scope.counts.snapshot() for scope in self.packed]

    def restore_counts(self, counts: Sequence[Any]) -> None:
        """Sets the counts back, so that a body that is traced again gets the same keys."""
        for scope, snapshot in zip(self.packed, counts):
            scope.counts.restore(snapshot)


def _sorted(tree: object) -> Any:
    """A tree of dicts with its names sorted: the order that variables have when they come out of a transform of JAX."""
    if type(tree) is not dict:
        return tree
    names = sorted(tree) if all(isinstance(name, str) for name in tree) else tree
    return {name: _sorted(tree[name]) for name in names}


def _by_filter(by_scope: Sequence[tuple[dict[str, Any], ...]], filters: Sequence[Filter]) -> Groups:
    """Regroups: by filter, then by scope, instead of by scope, then by filter."""
    return tuple(zip(*by_scope)) if by_scope else tuple(() for _ in filters)


def keeps_structure(scope: Scope, collection: str, name: str, grows: bool) -> bool:
    """The `keeps_sown` of transforms that must keep the structure of the variables."""
    return scope.has(collection, name) and not grows


def _outermost(scopes: Sequence[Scope]) -> tuple[list[Scope], list[tuple[int, Path]]]:
    """The scopes that no other contains, and for each scope which of these contains it, with its path there."""
    # A scope inside another is not packed again, or its variables would come out of the transform twice.
    identities = {scope.identity for scope in scopes}
    packed: dict[Any, tuple[int, Scope]] = {}
    places = []
    for scope in scopes:
        home, inwards = scope, ()
        path: list[str] = []
        for place in scope.ancestors():
            if place.identity in identities:
                home, inwards = place, tuple(reversed(path))
            path.append(place.name or "")
        index, _ = packed.setdefault(home.identity, (len(packed), home))
        places.append((index, inwards))
    return [scope for _, scope in packed.values()], places


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Static:
    """A pytree without leaves: carries a value through a transform unchanged."""

    value: Any


@dataclasses.dataclass(frozen=True)
class _Position:
    """The position of a module or variable in the arguments of a transformed function."""

    index: int


class Bridge:
    """A module, and the modules it holds or is called with, ready to be rebuilt on other scopes.

    Args:
        module: The module whose method is transformed.
        args: The arguments, which may contain modules and variables.
        kwargs: The keyword arguments, likewise.

    Attributes:
        scopes: The scopes of all these modules, its own first.
        sources: The module, and the modules and variables among the arguments.
        args: The arguments without modules and variables.
        kwargs: The keyword arguments without modules and variables.
    """

    def __init__(self, module: Module, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> None:
        self.module = module
        module.check_post_init()
        self._taken: list[Any] = []
        self.args, self.kwargs = jax.tree.map(self._take, (args, kwargs or {}), is_leaf=is_bound)
        self._index: dict[int, int] = {}
        self.scopes: list[Scope] = []
        self.sources = (module, *self._taken)
        for source in self.sources:
            self._collect(source)

    def on(self, scopes: Sequence[Scope]) -> Bridge:
        """The same bridge on other scopes, for a transform inside a transform."""
        inner = object.__new__(Bridge)
        inner.__dict__.update(self.__dict__, scopes=list(scopes))
        return inner

    def _take(self, leaf: object) -> Any:
        if not is_bound(leaf):
            return leaf
        self._taken.append(leaf)
        return Static(_Position(len(self._taken) - 1))

    def _collect(self, source: Module | Variable[Any]) -> None:
        if id(source) in self._index or source.scope is None:
            return
        self._index[id(source)] = len(self.scopes)
        self.scopes.append(source.scope)
        if isinstance(source, Module):
            for name in attach.fields_of(source):
                value = getattr(source, name)
                if attach.contains(value, is_bound):
                    attach.frozen_containers(value, lambda leaf, _: self._collect(leaf) if is_bound(leaf) else None)

    def index_of(self, source: Module | Variable[Any]) -> int | None:
        """The index of the scope of a module or variable among `scopes`, None if it is not there."""
        return self._index.get(id(source))

    def body(self, fn: Callable[..., Any], cls: type[Module] | None = None) -> Body:
        """Makes a function of scopes that runs `fn(module, *args, **kwargs)` on copies of the modules.

        Args:
            fn: The function; its first argument is the copy of the bridge's module. A bound method of a module means
                the method.
            cls: The class of that copy, the module's own if None.
        """
        source = self.module
        fn = wrap(fn.__func__ if isinstance(getattr(fn, "__self__", None), Module) else fn)  # pyright: ignore
        # Copied now, so that a body that is traced again gives the same names.
        state = source._state.for_transform()
        # The copy runs setup again, but what a compact method made before it called this function stays.
        made_here = source._state.in_compact and type(source).setup is Module.setup
        names = source.scope.submodule_names() if made_here and source.scope is not None else frozenset[str]()

        def run(scopes: Sequence[Scope], *args: Any, **kwargs: Any) -> Any:
            copies: dict[int, Any] = {}

            def put_back(leaf: Any) -> Any:
                return self._copy(self._taken[leaf.value.index], scopes, copies) if _is_slot(leaf) else leaf

            copy = self._copy(source, scopes, copies, cls)
            if copy is not source:
                object.__setattr__(copy, "_state", state.for_transform())
                if names:
                    copy.scope.take_names(names)
            args, kwargs = jax.tree.map(put_back, (args, kwargs), is_leaf=_is_slot)
            output = fn(copy, *args, **kwargs)
            source._state.catch_up(copy._state)
            _check_output(output, source, fn)
            return output

        run.of = (fn, cls)  # pyright: ignore[reportFunctionMemberAccess]
        return run

    def _copy(
        self, original: Any, scopes: Sequence[Scope], copies: dict[int, Any], cls: type[Module] | None = None
    ) -> Any:
        """The copy of a module or variable on the scopes of the transform, made once; other values as they are."""
        index = self._index.get(id(original))
        if index is None or id(original) in copies:
            return copies.get(id(original), original)
        if isinstance(original, Variable):
            copied: Any = original.on(scopes[index])
        else:
            values = {name: getattr(original, name) for name in attach.fields_of(original)}
            for name, value in values.items():
                if attach.contains(value, is_bound):
                    values[name] = attach.frozen_containers(value, lambda leaf, _: self._copy(leaf, scopes, copies))
            copied = (cls or type(original))(**values, name=original.name, parent=scopes[index])
        copies[id(original)] = copied
        return copied


def _is_slot(leaf: object) -> bool:
    return isinstance(leaf, Static) and isinstance(leaf.value, _Position)


def _check_output(output: object, module: Module, fn: Callable[..., Any]) -> None:
    for leaf in jax.tree.leaves(output, is_leaf=is_bound):
        if is_bound(leaf):
            raise TransformedMethodReturnValueError(
                f"{getattr(fn, '__name__', 'a function')} of {attach.describe(module)} runs under a lifted transform "
                f"and returns a {type(leaf).__name__}: modules and variables cannot leave a transform; return values"
            )


def lift(
    target: Callable[..., Any],
    run: Callable[..., Any],
    *,
    label: str,
    methods: Methods = None,
    options: dict[str, Any] | None = None,
) -> Any:
    """Applies a transform to a module class (some of its methods), to a method, or to a function of a module.

    Args:
        target: The class, a `functools.partial` of one, or the function.
        run: Runs a call: `run(bridge, body, args, kwargs, **options)`.
        label: The name of the transform; the new class is named after it.
        methods: For a class, the methods: None for `__call__`, names, or a dict from names to options.
        options: The options of the transform.
    """
    options = options or {}
    if isinstance(target, functools.partial) and isinstance(target.func, type) and issubclass(target.func, Module):
        lifted = lift(target.func, run, label=label, methods=methods, options=options)
        return functools.partial(lifted, *target.args, **target.keywords)
    if isinstance(target, type) and issubclass(target, Module):
        chosen = _options_by_method(methods, options)
        lifted_methods = {name: _lifted(getattr(target, name), run, chosen[name], cls=target) for name in chosen}
        return type(
            label.capitalize() + target.__name__, (target,), {"__module__": target.__module__, **lifted_methods}
        )
    if callable(target) and not isinstance(target, (type, Module)):
        return _lifted(wrap(target), run, options, cls=None)
    raise TransformTargetError(
        f"nn.{label} takes a module class or a function whose first argument is a module, got {target!r} of type "
        f"{type(target).__name__}; transform the class before making an instance of it"
    )


def lift_with(run: Callable[..., Any], arguments: dict[str, Any], *, label: str) -> Any:
    """As `lift`, with the arguments of a public transform, its `locals()`: target, methods, and options."""
    # A copy: `locals()` belongs to the frame of the caller.
    options = dict(arguments)
    return lift(options.pop("target"), run, label=label, methods=options.pop("methods"), options=options)


def _options_by_method(methods: Methods, options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    if methods is None:
        return {"__call__": options}
    if isinstance(methods, Mapping):
        return {name: {**options, **own} for name, own in methods.items()}
    if isinstance(methods, (list, tuple)):
        return dict.fromkeys(methods, options)
    raise ValueError(f"methods must be None, a sequence of names or a dict of options by name, got {methods!r}")


def _lifted(fn: Callable[..., Any], run: Callable[..., Any], options: dict[str, Any], cls: type[Module] | None) -> Any:
    def method(self: Module, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self, Module):
            raise TransformTargetError(
                f"the first argument of the transformed function {getattr(fn, '__name__', fn)!r} must be a module, got "
                f"{type(self).__name__}"
            )
        # Made for each call: the modules among the arguments differ from call to call.
        bridge = Bridge(self, args, kwargs)
        return run(bridge, bridge.body(fn, cls), bridge.args, bridge.kwargs, **options)

    for attribute in ("__name__", "__qualname__", "__doc__", "__module__"):
        if hasattr(fn, attribute):
            setattr(method, attribute, getattr(fn, attribute))
    method.compact = getattr(fn, "compact", False)  # pyright: ignore[reportFunctionMemberAccess]
    # Only the inner function is offered to interceptors and to capture_intermediates: one call, one value.
    method.transparent = True  # pyright: ignore[reportFunctionMemberAccess]
    # What a lifted class makes in setup is lifted too.
    method.sets_up_inside = cls is not None  # pyright: ignore[reportFunctionMemberAccess]
    method.__wrapped__ = fn  # pyright: ignore[reportFunctionMemberAccess]
    method.method_handler_wrapped = True  # pyright: ignore[reportFunctionMemberAccess]; see `methods.wrap`
    return method


def ignore_keywords(kwargs: dict[str, Any], label: str, module: Module) -> None:
    """Warns that keyword arguments are ignored, as in Flax, by a transform that maps arguments by position."""
    if kwargs:
        warnings.warn(
            f"nn.{label} of {attach.describe(module)} ignores the keyword arguments {sorted(kwargs)}: it cannot tell "
            "which axes they have; pass them by position",
            RuntimeWarning,
            stacklevel=2,
        )
