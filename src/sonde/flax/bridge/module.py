"""`Module`: an nnx Module that is written, initialized and applied like a linen module.

Fields are declared as in a dataclass; submodules and parameters are made in `setup` or in a method marked `compact`;
`init` returns the variables and `apply` takes them. While a method runs, its parameters are `nnx.Param` in attributes.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jax

from sonde import nnx
from sonde.errors import ScopeParamNotFoundError
from sonde.flax.bridge.context import MODULE_CONTEXT as MODULE_CONTEXT
from sonde.flax.bridge.context import ModuleContext as ModuleContext
from sonde.flax.bridge.context import ModuleStackEntry as ModuleStackEntry
from sonde.flax.bridge.context import Scope, current_context
from sonde.flax.bridge.context import current_module as current_module
from sonde.flax.bridge.to_nnx import Seeds, ToNNX
from sonde.flax.bridge.variables import collection_of, leaves_of, put_at, to_attributes, to_linen_var, to_nnx_var
from sonde.linen.variables.filters import Filter, matches
from sonde.nnx.modules.module import ModuleMeta as NnxModuleMeta

F = TypeVar("F", bound=Callable[..., Any])
_UNSET: Any = object()


class AttrPriority(enum.IntEnum):
    """If several attributes hold the same module, the one with the smallest number names its variables."""

    HIGH = 0
    INIT_PARENT = 20
    DEFAULT = 50
    LOW = 100


class Binding:
    """The pending variables of a bound module, which its parts will get.

    It is one static attribute of the module, equal only to itself.
    """

    def __init__(self, pending: dict[Any, Any]):
        self.pending = pending
        self.priorities: dict[str, int] = {}
        self.is_set_up = False


def compact(f: F) -> F:
    """Marks a method in which submodules and parameters are made where they are used."""

    @functools.wraps(f)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        with MODULE_CONTEXT.running(self, in_compact=True):
            return f(self, *args, **kwargs)

    return wrapper  # type: ignore[return-value]


class ModuleMeta(NnxModuleMeta):
    """Binds modules that are made inside others."""

    def __call__(cls, *args: Any, parent: Any = _UNSET, name: str | None = None, **kwargs: Any) -> Any:
        """Makes a module; inside a compact method, as a submodule of the running one."""
        if name is not None and "name" in {f.name for f in dataclasses.fields(cls)}:  # type: ignore[arg-type]
            kwargs["name"] = name
        module = super().__call__(*args, **kwargs)
        entry = current_context()
        if parent is None or entry is None:
            return module
        if entry.in_compact:
            attach(entry.module, module, name or next_name(entry, cls.__name__), AttrPriority.INIT_PARENT)
        elif name is not None:
            vars(module)["_given_name"] = name  # until `setup` assigns it
        return module


def next_name(entry: ModuleStackEntry, base: str) -> str:
    """A name for an unnamed submodule: its class name and a number."""
    number = entry.type_counter[base]
    entry.type_counter[base] += 1
    return f"{base}_{number}"


def binding(module: Module) -> Binding:
    """The binding of a module; an empty one if it is not bound."""
    module_binding = vars(module).get("_binding")
    if module_binding is None:
        module_binding = Binding({})
        module._binding = module_binding
    return module_binding


def attach(parent: Module, child: nnx.Module, name: str, priority: AttrPriority = AttrPriority.DEFAULT) -> None:
    """Makes a module a submodule under a name, and gives it the pending variables of that name."""
    parent_binding = binding(parent)
    parent_binding.priorities.setdefault(name, priority)
    bind(child, parent.scope, parent_binding.pending.get(name))
    setattr(parent, name, child)


def bind(child: object, scope: Scope | None, pending: object) -> None:
    """Binds a module and everything in it to a scope, unless it is bound already."""
    if isinstance(child, Module) and scope is not None and child.scope is None:
        child._start(scope, pending if isinstance(pending, dict) else {})
    elif isinstance(child, nnx.Module) and not isinstance(child, Module):
        fill(child, pending)


def fill(module: nnx.Module, waiting: object) -> None:
    """Gives an nnx Module its pending variables."""
    if not isinstance(waiting, dict):
        return
    if isinstance(module, ToNNX):
        module._take(waiting)
    else:
        nnx.update(module, nnx.from_flat_state(dict(leaves_of(waiting))))


class Module(nnx.Module, metaclass=ModuleMeta):
    """A module with linen's interface, built on nnx.

    Example:
        >>> import jax.numpy as jnp
        >>> from sonde import nnx
        >>> class Dense(nnx.bridge.Module):
        ...     features: int
        ...     @nnx.bridge.compact
        ...     def __call__(self, x):
        ...         shape = (x.shape[-1], self.features)
        ...         return x @ self.param("w", nnx.initializers.lecun_normal(), shape)
        >>> variables = Dense(3).init(0, jnp.ones((1, 2)))
        >>> variables["params"]["w"].shape, Dense(3).apply(variables, jnp.ones((1, 2))).shape
        ((2, 3), (1, 3))
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        dataclasses.dataclass(repr=False, eq=False)(cls)
        super().__init_subclass__(**kwargs)

    def setup(self) -> None:
        """Makes the submodules; for subclasses to override."""

    @property
    def scope(self) -> Scope | None:
        """What the module is bound to, None outside a run."""
        return vars(self).get("_scope")

    def _start(self, scope: Scope, pending: dict[Any, Any]) -> None:
        """Binds the module: it takes its own variables; those of its parts stay pending."""
        binding(self).pending = pending
        self._scope = nnx.data(scope)
        for name, value in pending.items():
            if isinstance(value, nnx.Variable):
                setattr(self, name, value)
        self._set_up()

    def _set_up(self) -> None:
        own_binding = binding(self)
        if not own_binding.is_set_up:
            own_binding.is_set_up = True
            for name, value in list(vars(self).items()):
                bind(value, self.scope, own_binding.pending.get(name))
            with MODULE_CONTEXT.running(self, in_compact=False):
                self.setup()

    def __setattr__(self, name: str, value: Any) -> None:
        if self.scope is not None and not name.startswith("_"):
            value = self._adopted(name, value, binding(self))
        if isinstance(value, dict) and any(isinstance(v, (dict, nnx.Module, nnx.Variable)) for v in value.values()):
            value = nnx.data(value)
        super().__setattr__(name, value)

    def _adopted(self, name: str, value: object, held: Binding) -> Any:
        """The value to store for an attribute that is set during a run: modules in it become submodules."""
        if isinstance(value, nnx.Module) and not isinstance(value, nnx.List):
            given_name = vars(value).pop("_given_name", None)
            if given_name is not None and given_name != name:
                attach(self, value, given_name, AttrPriority.INIT_PARENT)
            bind(value, self.scope, held.pending.get(name))
        elif isinstance(value, (list, tuple)) and any(isinstance(v, nnx.Module) for v in value):
            waiting = held.pending.get(name, {})
            for i, item in enumerate(value):
                given_name = vars(item).pop("_given_name", None)
                if given_name is not None:
                    attach(self, item, given_name, AttrPriority.INIT_PARENT)
                bind(item, self.scope, waiting.get(i))
            return nnx.List(value)
        return value

    def set_attr_priority(self, name: str, value: AttrPriority) -> None:
        """Sets an attribute's priority: if several hold the same module, the smallest number wins."""
        binding(self).priorities[name] = value

    # ---------------------------------------------------------------------------------------------- variables

    def _bound(self, what: str) -> Scope:
        scope = self.scope
        if scope is None:
            raise ValueError(
                f"{type(self).__name__} cannot {what} outside a run: call `init` or `apply`, or make it inside a "
                "running module."
            )
        return scope

    def param(self, name: str, init_fn: Callable[..., Any], *init_args: Any, unbox: bool = True, **kwargs: Any) -> Any:
        """A parameter, made when the module is initialized.

        Args:
            name: Its name.
            init_fn: An initializer, which is called with a key and the arguments that follow.
            *init_args: Arguments of the initializer.
            unbox: Has no effect; a Variable is always returned.
            **kwargs: Keyword arguments of the initializer.

        Returns:
            The `nnx.Param`.

        Raises:
            ScopeParamNotFoundError: The variables given to `apply` have no such parameter.
        """
        del unbox
        scope = self._bound("make parameters")
        return self._variable("params", name, lambda: init_fn(scope.rngs.params(), *init_args, **kwargs))

    def variable(
        self,
        col: str,
        name: str,
        init_fn: Callable[..., Any] | None = None,
        *init_args: Any,
        unbox: bool = True,
        **kwargs: Any,
    ) -> Any:
        """A variable of a collection, made when it is missing; see `param`."""
        del unbox
        self._bound("make variables")
        make = None if init_fn is None else lambda: init_fn(*init_args, **kwargs)
        return self._variable(col, name, make)

    def _variable(self, collection: str, name: str, make: Callable[[], Any] | None) -> Any:
        held = vars(self).get(name)
        if isinstance(held, nnx.Variable):
            return held
        scope = self._bound("read variables")
        waiting = binding(self).pending.get(name)
        if waiting is None:
            if make is None or (collection == "params" and not scope.may_change("params")):
                raise ScopeParamNotFoundError(
                    f"{type(self).__name__} needs {name!r} of the collection {collection!r}, but the variables given "
                    "to `apply` lack it. Pass those that `init` returned."
                )
            waiting = to_nnx_var(collection, make(), nnx)
        setattr(self, name, waiting)
        return waiting

    def make_rng(self, name: str = "default") -> jax.Array:
        """A new key of a random stream."""
        return self._bound("draw keys").rngs[name]()

    def is_initializing(self) -> bool:
        """Whether `init` runs."""
        return self.scope is not None and self.scope.initializing

    @property
    def variables(self) -> dict[str, Any]:
        """The variables of this module and its submodules, by collection."""
        variables: dict[str, Any] = {}
        for path, variable in _walk(self, (), set()):
            put_at(variables, (collection_of(variable), *path), to_linen_var(variable))
        return variables

    # --------------------------------------------------------------------------------------------------- runs

    def apply(
        self,
        variables: Mapping[str, Any],
        *args: Any,
        rngs: Seeds = None,
        method: Callable[..., Any] | str = "__call__",
        mutable: Filter = False,
        **kwargs: Any,
    ) -> Any:
        """Calls the module with variables.

        Args:
            variables: What `init` returned.
            *args: Arguments of the method.
            rngs: A seed, a key, seeds or keys by name, or an `nnx.Rngs`.
            method: The method, or its name.
            mutable: The collections that may change.
            **kwargs: Keyword arguments of the method.

        Returns:
            What the method returns; with `mutable`, also the collections that may have changed.
        """
        out, changed = self._run(variables, Scope(_streams(rngs), mutable), method, args, kwargs)
        if mutable is False:
            return out
        return out, {name: tree for name, tree in changed.items() if matches(mutable, name)}

    def init_with_output(
        self, rngs: Seeds = None, *args: Any, method: Callable[..., Any] | str = "__call__", **kwargs: Any
    ) -> tuple[Any, dict[str, Any]]:
        """Calls the module so that it makes its variables; returns the result and the variables."""
        kwargs.pop("mutable", None)
        return self._run({}, Scope(_streams(rngs), True, initializing=True), method, args, kwargs)

    def init(
        self, rngs: Seeds = None, *args: Any, method: Callable[..., Any] | str = "__call__", **kwargs: Any
    ) -> dict[str, Any]:
        """Calls the module so that it makes its variables, and returns them."""
        return self.init_with_output(rngs, *args, method=method, **kwargs)[1]

    def _run(
        self,
        variables: Mapping[str, Any],
        scope: Scope,
        method: Callable[..., Any] | str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[Any, dict[str, Any]]:
        module = nnx.clone(self)
        own = vars(self).get("_binding")
        fresh = Binding({})
        fresh.priorities.update({} if own is None else own.priorities)
        module.__setattr__("_binding", fresh)
        module._start(scope, to_attributes(variables, nnx))
        call = getattr(module, method) if isinstance(method, str) else functools.partial(method, module)
        with MODULE_CONTEXT.running(module, in_compact=False):
            out = call(*args, **kwargs)
        return out, module.variables


ModuleBase = Module


def _streams(rngs: Seeds) -> nnx.Rngs:
    if isinstance(rngs, nnx.Rngs):
        return rngs
    if rngs is None:
        return nnx.Rngs()
    return nnx.Rngs(**rngs) if isinstance(rngs, Mapping) else nnx.Rngs(rngs)


def _walk(node: object, path: tuple[Any, ...], met: set[int]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The Variables in a module by path, each once, in the order of the attributes' priorities."""
    if isinstance(node, nnx.Variable):
        if id(node) not in met and not isinstance(node, nnx.RngState):
            met.add(id(node))
            yield path, node
        return
    if isinstance(node, Mapping):
        children = list(node.items())
    elif isinstance(node, (list, tuple, nnx.List)):
        children = list(enumerate(node))
    elif isinstance(node, nnx.Pytree):
        if id(node) in met:
            return
        met.add(id(node))
        children = [(name, value) for name, value in vars(node).items() if not str(name).startswith("_")]
        if isinstance(node, Module):
            held = vars(node).get("_binding")
            order = {} if held is None else held.priorities
            children.sort(key=lambda child: (order.get(child[0], AttrPriority.DEFAULT), child[0]))
    else:
        return
    for name, child in children:
        yield from _walk(child, (*path, name), met)
