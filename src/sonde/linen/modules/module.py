"""`nn.Module`: a dataclass whose methods run on variables from outside."""

from __future__ import annotations

import dataclasses
import inspect
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, dataclass_transform

from sonde.errors import (
    CallSetupUnboundModuleError,
    CallUnbindOnUnboundModuleError,
    DescriptorAttributeError,
    IncorrectPostInitOverrideError,
    ReservedModuleAttributeError,
    SetAttributeFrozenModuleError,
    SetAttributeInModuleSetupError,
)
from sonde.linen import kw_only_dataclasses
from sonde.linen.modules import attach, methods, run, table
from sonde.linen.modules.attach import UNSPECIFIED, ModuleBase, ModuleState
from sonde.linen.modules.context import Capture, context
from sonde.linen.modules.description import description, short
from sonde.linen.modules.methods import OnInstances
from sonde.linen.variables import sites
from sonde.linen.variables.filters import Filter
from sonde.linen.variables.frozen_dict import unfreeze
from sonde.linen.variables.rng import Rngs
from sonde.linen.variables.scope import Path, Scope, Variable

T = TypeVar("T")


_OF_ALL = ("parent", "name")  # the fields that every module has


class _Parent:
    """The field `parent`, a weak reference: a cycle of parent and child would keep values alive."""

    def __get__(self, instance: Any, owner: type[Any]) -> Any:
        if instance is None:
            return UNSPECIFIED
        parent = instance.__dict__.get("_parent", UNSPECIFIED)
        return parent() if isinstance(parent, weakref.ref) else parent

    def __set__(self, instance: Any, parent: Any) -> None:
        instance.__dict__["_parent"] = weakref.ref(parent) if isinstance(parent, Module) else parent


@dataclass_transform(field_specifiers=(dataclasses.field,))
@dataclasses.dataclass(repr=False)
class Module(ModuleBase):
    """The base class of modules. Subclasses become dataclasses without a decorator.

    Submodules and variables are made in `setup`, or where they are used, in a method marked `@nn.compact`. A module
    holds no variables: `init` makes them, `apply` runs the module on them.

    Attributes:
        parent: The module (or scope) that this one is part of. Set automatically; None for a top-level module.
        name: The name in the parent. Given, or made from the class or the attribute.
        scope: Where the variables are while `init` or `apply` runs, None otherwise.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from sonde import linen as nn
        >>> class MLP(nn.Module):
        ...     features: int
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         x = nn.relu(nn.Dense(self.features)(x))
        ...         return nn.Dense(1)(x)
        >>> model = MLP(features=4)
        >>> variables = model.init(jax.random.key(0), jnp.ones((2, 3)))
        >>> model.apply(variables, jnp.ones((2, 3))).shape
        (2, 1)
    """

    parent: Any = dataclasses.field(default=UNSPECIFIED, repr=False, kw_only=True)
    name: str | None = dataclasses.field(default=None, kw_only=True)

    if TYPE_CHECKING:  # Not fields: a copy must not be given them.
        scope: ClassVar[Scope | None]
        _state: ClassVar[Any]
    else:
        scope = None
        _state = None

    def __init_subclass__(cls, kw_only: bool = False, **kwargs: Any) -> None:
        """Makes the subclass a dataclass and prepares its methods."""
        super().__init_subclass__(**kwargs)
        annotations = inspect.get_annotations(cls)
        if "parent" in annotations:
            raise ReservedModuleAttributeError(
                f"module class {cls.__name__} defines the field parent: every module has one; choose another name"
            )
        if "name" in annotations:  # Every module has this field: it comes last and is None by default.
            cls.__annotations__ = {name: kind for name, kind in annotations.items() if name != "name"}
            if "name" in vars(cls):
                del cls.name
        own_hash = vars(cls).get("__hash__", Module.__hash__)
        kw_only_dataclasses.dataclass(cls, repr=False, kw_only=kw_only)
        fields = cls.__dataclass_fields__  # the class's own fields come first in calls and in `repr`
        own = [name for name in fields if name not in _OF_ALL]
        cls.__dataclass_fields__ = {name: fields[name] for name in (*own, *_OF_ALL)}
        cls.__hash__ = own_hash  # dataclass removes it when it makes an __eq__
        methods.prepare_class(cls)

    def __post_init__(self) -> None:
        """Finds the parent. A subclass that overrides it must call it."""
        object.__setattr__(self, "scope", None)
        object.__setattr__(self, "_state", ModuleState())
        if self.parent is UNSPECIFIED:
            object.__setattr__(self, "parent", context.module_stack[-1])
        attach.attach(self)

    def check_post_init(self) -> None:
        """Raises if a subclass overrides `__post_init__` without calling it."""
        if self.__dict__.get("_state") is None:
            raise IncorrectPostInitOverrideError(
                f"{type(self).__name__} overrides __post_init__ without calling super().__post_init__()"
            )

    # ----------------------------------------------------------------------------------------------- attributes

    def __setattr__(self, name: str, value: Any) -> None:
        state = self.__dict__.get("_state")
        if state is None or self.scope is None or name == "__class__":
            object.__setattr__(self, name, value)
            return
        is_field = name in type(self).__dataclass_fields__ and type(self).__dataclass_fields__[name].init
        if not state.in_setup:
            raise SetAttributeFrozenModuleError(
                f"cannot set {name}={short(value)} on {attach.describe(self)}: a module is frozen outside its "
                "setup method; use clone(...) for a module with another field, or a variable for state"
            )
        if is_field:
            raise SetAttributeInModuleSetupError(
                f"setup of {attach.describe(self)} sets {name!r}, which is a field of the module; fields are set by "
                "the constructor: use another attribute"
            )
        object.__setattr__(self, name, attach.adopt(self, name, value))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_state":
            raise AttributeError(f"{type(self).__name__} object has no attribute {name!r}")
        state = self.__dict__.get("_state")
        if state is not None and not state.in_setup:
            self._set_up()
            if name in self.__dict__:
                return self.__dict__[name]
        self._check_descriptor(name)
        message = f'"{type(self).__name__}" object has no attribute "{name}".'
        if self.scope is None:
            message += " Attributes made in setup exist only inside init and apply, or after bind."
        raise AttributeError(message)

    def _check_descriptor(self, name: str) -> None:
        """Raises if the attribute is a property whose own code asks for an attribute that does not exist."""
        attribute = inspect.getattr_static(type(self), name, None)
        getter = getattr(type(attribute), "__get__", None)
        if getter is None or isinstance(attribute, type):
            return
        try:
            getter(attribute, self, type(self))
        except AttributeError as error:
            raise DescriptorAttributeError(
                f"{type(self).__name__}.{name} accesses an attribute that does not exist: {error}"
            ) from error

    def __dir__(self) -> list[str]:
        self._set_up()
        return sorted({*object.__dir__(self), *self.__dict__})

    def __repr__(self) -> str:
        return description(self)

    def __hash__(self) -> int:
        if self.scope is not None:
            raise TypeError(f"{attach.describe(self)} is bound to variables and cannot be hashed")
        return hash(tuple(getattr(self, f.name) for f in dataclasses.fields(self) if f.compare))

    def __copy__(self) -> Self:
        return self.clone(parent=self.parent) if self.scope is None else self

    # ----------------------------------------------------------------------------------------------- setup

    def setup(self) -> None:
        """Makes submodules and variables and assigns them to attributes; for subclasses to override.

        Runs once for every `init` or `apply`, before the first method or attribute is used.
        """

    def _set_up(self) -> None:
        state = self._state
        if self.scope is None or state.in_setup or state.set_up:
            return
        # Before `setup` runs, because it may use attributes, which would start it again.
        state.in_setup = state.set_up = True
        try:
            with context.calling(self):
                setup = getattr(type(self).setup, "__wrapped_method__", None)  # None if it is Module's own
                if setup is not None:
                    methods.intercepted(self, setup, "setup")()
                    if callable(self.scope.run.capture):
                        sites.offer(self, "setup", None)
        finally:
            state.in_setup = False

    def bound_scope(self, what: str) -> Scope:
        """The scope, or an error that says that `what` needs one."""
        self.check_post_init()
        if self.scope is None:
            kind = CallSetupUnboundModuleError if what == "run setup" else ValueError
            raise kind(
                f"{type(self).__name__} cannot {what}: it is not bound to variables; do it inside init or apply, or "
                "on what bind returns"
            )
        return self.scope

    # ----------------------------------------------------------------------------------------------- variables

    def param(
        self, name: str, init_fn: Callable[..., Any], *init_args: Any, unbox: bool = True, **init_kwargs: Any
    ) -> Any:
        """The value of a parameter; during `init`, `init_fn(key, *init_args, **init_kwargs)` makes it.

        Args:
            name: Its name in the module.
            init_fn: The initializer. Its first argument is a random key.
            *init_args: Further arguments for the initializer.
            unbox: Whether to take a value out of its box (`nn.with_partitioning`).
            **init_kwargs: Further keyword arguments for the initializer.
        """
        scope = self._may_create(name, "params", "param")
        return scope.param(name, init_fn, *init_args, unbox=unbox, **init_kwargs)

    def variable(
        self,
        col: str,
        name: str,
        init_fn: Callable[..., Any] | None = None,
        *init_args: Any,
        unbox: bool = True,
        **init_kwargs: Any,
    ) -> Variable[Any]:
        """A reference to a variable of any collection; read and set it by its `value`.

        Args:
            col: The collection.
            name: Its name in the module.
            init_fn: Makes the value if there is none yet. Unlike an initializer it is given no key.
            *init_args: Arguments for `init_fn`.
            unbox: Whether to take a value out of its box.
            **init_kwargs: Keyword arguments for `init_fn`.
        """
        scope = self._may_create(name, col, "variable")
        return scope.variable(col, name, init_fn, *init_args, unbox=unbox, **init_kwargs)

    def _may_create(self, name: str, collection: str, what: str) -> Scope:
        scope = self.bound_scope(f"make the {what} {name!r}")
        if not (self._state.in_setup or self._state.in_compact):
            raise ValueError(
                f"{what} {name!r} of {attach.describe(self)} was made outside setup and compact methods; "
                "make it in setup, or mark the method with @nn.compact"
            )
        scope.reserve(name, collection, what=what, owner=type(self).__name__)
        return scope

    def _read_scope(self) -> Scope:
        scope = self.bound_scope("read variables")
        sites.flush(scope.run)  # values sown inside transforms that have ended
        return scope

    def has_variable(self, col: str, name: str) -> bool:
        """Whether a variable exists."""
        return self._read_scope().has(col, name)

    def get_variable(self, col: str, name: str, default: Any = None) -> Any:
        """The value of a variable, or `default` if there is none."""
        return self._read_scope().get(col, name, default)

    def put_variable(self, col: str, name: str, value: Any) -> None:
        """Sets a variable."""
        self.bound_scope("set variables").put(col, name, value)

    @property
    def variables(self) -> dict[str, Any]:
        """All variables of this module and its submodules."""
        return self._read_scope().collections()

    @property
    def path(self) -> Path:
        """The names of the modules from the outermost to this one."""
        return self.bound_scope("have a path").path

    def is_mutable_collection(self, col: str) -> bool:
        """Whether a collection may change."""
        return self.bound_scope("ask for mutable collections").is_mutable(col)

    def is_initializing(self) -> bool:
        """Whether this is a call of `init` and not of `apply`."""
        return self.bound_scope("ask whether it is being initialized").run.initializing

    def has_rng(self, name: str) -> bool:
        """Whether keys of a random stream were given."""
        return name in self.bound_scope("have random keys").streams

    def make_rng(self, name: str = "params") -> Any:
        """A new random key of a stream.

        It depends on the key given for the stream, on the path of the module, and on how many keys it has drawn before.
        A stream that was not given is replaced by `params`.
        """
        return self.bound_scope("make random keys").make_rng(name)

    # ----------------------------------------------------------------------------------------------- sites

    def sow(
        self,
        col: str,
        name: str,
        value: Any,
        reduce_fn: Callable[[Any, Any], Any] = sites.append,
        init_fn: Callable[[], Any] = sites.empty,
    ) -> bool:
        """Puts a value into a collection, which `apply` returns if the collection is mutable.

        Does nothing if the collection is not mutable. The value arrives from inside any transform, Linen's or JAX's;
        see `sonde.linen.variables.sites` for its form there.

        Args:
            col: The collection, usually `"intermediates"`.
            name: The name of the value in this module.
            value: An array or a pytree.
            reduce_fn: Combines the earlier values with a new one; by default values are appended to a tuple.
            init_fn: Makes the initial value; by default an empty tuple.

        Returns:
            Whether the value was kept.
        """
        return sites.sow(self, col, name, value, reduce_fn, init_fn)

    def perturb(self, name: str, value: T, collection: str = "perturbations") -> T:
        """Adds a variable that is zero to `value`, so that its gradient is the gradient of `value`.

        The variable is made by `init`. If the variables given to `apply` lack it, nothing is added.
        """
        return sites.perturb(self, name, value, collection)

    # ----------------------------------------------------------------------------------------------- running

    @OnInstances
    def init(
        self,
        rngs: Rngs,
        *args: Any,
        method: Callable[..., Any] | str | None = None,
        mutable: Filter = run.ALL_BUT_INTERMEDIATES,
        capture_intermediates: Capture = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Runs the module and returns the variables it makes.

        Args:
            rngs: One key, or keys by stream name (`params`, `dropout`, ...).
            *args: Arguments for the method.
            method: The method to run, by name or as a function that takes the module first; `__call__` if None.
            mutable: Which collections are made.
            capture_intermediates: As in `apply`.
            **kwargs: Keyword arguments for the method.
        """
        return self.init_with_output(
            rngs, *args, method=method, mutable=mutable, capture_intermediates=capture_intermediates, **kwargs
        )[1]

    @OnInstances
    def init_with_output(
        self,
        rngs: Rngs,
        *args: Any,
        method: Callable[..., Any] | str | None = None,
        mutable: Filter = run.ALL_BUT_INTERMEDIATES,
        capture_intermediates: Capture = False,
        **kwargs: Any,
    ) -> tuple[Any, dict[str, Any]]:
        """Runs the module and returns its output and the variables it makes; arguments as for `init`."""
        self.check_post_init()
        fn = run.function_of(self, method, where="init")
        return run.init_with_output(fn, self, mutable, capture_intermediates)(rngs, *args, **kwargs)

    @OnInstances
    def lazy_init(
        self,
        rngs: Rngs,
        *args: Any,
        method: Callable[..., Any] | None = None,
        mutable: Filter = run.ALL_BUT_INTERMEDIATES,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """`init` without computing anything but the variables; inputs may be given as `jax.ShapeDtypeStruct`."""
        self.check_post_init()
        fn = run.function_of(self, method, where="lazy_init")
        return run.lazy_init(
            run.init(fn, self, mutable), rngs, args, kwargs, where=f"lazy_init of {type(self).__name__}"
        )

    @OnInstances
    def apply(
        self,
        variables: Mapping[str, Any],
        *args: Any,
        rngs: Rngs = None,
        method: Callable[..., Any] | str | None = None,
        mutable: Filter = False,
        capture_intermediates: Capture = False,
        **kwargs: Any,
    ) -> Any:
        """Runs the module on variables.

        Args:
            variables: A dict of collections, as `init` returns it.
            *args: Arguments for the method.
            rngs: One key, or keys by stream name.
            method: The method to run, by name or as a function that takes the module first; `__call__` if None.
            mutable: Which collections may change: a bool, a name, several names or a `DenyList`.
            capture_intermediates: True to sow the output of every `__call__` into `"intermediates"`, or a filter, a
                function of the module and the name of each method that is called.
            **kwargs: Keyword arguments for the method.

        Returns:
            The output, or with `mutable` or `capture_intermediates` a pair of it and the variables that may have
            changed.
        """
        self.check_post_init()
        fn = run.function_of(self, method, where="apply")
        return run.run_apply(
            self, fn, variables, args, kwargs, rngs=rngs, mutable=mutable, capture=capture_intermediates, where="apply"
        )

    @OnInstances
    def bind(self, variables: Mapping[str, Any], *args: Any, rngs: Rngs = None, mutable: Filter = False) -> Self:
        """A copy of the module that holds variables, to call and inspect interactively."""
        del args
        self.check_post_init()
        where = f"bind of {type(self).__name__}"
        scope = run.root_scope(run.check_variables(variables, where=where), rngs, mutable, where=where)
        return self.clone(parent=scope, _deep_clone=True)

    def unbind(self) -> tuple[Self, dict[str, Any]]:
        """The module without variables, and its variables: the opposite of `bind`, also for a submodule."""
        if self.scope is None:
            raise CallUnbindOnUnboundModuleError(
                f"unbind was called on {type(self).__name__}, which is not bound; call bind first"
            )
        variables = unfreeze(self.variables)
        return self.clone(_deep_clone=True, _reset_names=True, name=None), variables

    def tabulate(self, rngs: Rngs, *args: Any, **kwargs: Any) -> str:
        """A table of the submodules and variables for given inputs; options as for `nn.tabulate`, by keyword."""
        names = inspect.signature(table.tabulate).parameters
        options = {name: kwargs.pop(name) for name in list(kwargs) if name in names and name != "kwargs"}
        return table.tabulate(self, rngs, **options)(*args, **kwargs)

    def module_paths(self, rngs: Rngs, *args: Any, **kwargs: Any) -> dict[str, Module]:
        """The submodules that are called for given inputs, by path; arguments as for `init`."""
        return table.module_paths(self, rngs, *args, **kwargs)

    def clone(
        self, *, parent: Any = None, _deep_clone: bool = False, _reset_names: bool = False, **updates: Any
    ) -> Self:
        """A copy with some fields changed, without a parent unless one is given."""
        return attach.clone(self, parent=parent, deep=_deep_clone, updates=updates, reset_names=_reset_names)

    def copy(self, *, parent: Any = UNSPECIFIED, name: str | None = None, **updates: Any) -> Self:
        """A copy with some fields changed, as a new submodule of the module that is running."""
        return attach.clone(self, parent=parent, deep=True, updates={"name": name, **updates}, reset_names=True)


Module.parent = _Parent()  # pyright: ignore[reportAttributeAccessIssue]


def merge_param(name: str, a: T | None, b: T | None) -> T:
    """Returns whichever of a field and an argument is not None.

    Raises:
        ValueError: Both are given, or neither.

    Example:
        >>> merge_param("train", None, True)
        True
    """
    if (a is None) == (b is None):
        how_many = "neither" if a is None else "both"
        raise ValueError(
            f"parameter {name!r} must be given either to the constructor or to the call: {how_many} was given "
            f"({a!r} and {b!r})"
        )
    return a if b is None else b  # pyright: ignore[reportReturnType]
