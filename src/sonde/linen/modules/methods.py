"""How the methods of a module run.

Every method that a module class defines is wrapped once, when the class is made; inherited methods are wrapped already.
The wrapper runs `setup` if that has not happened, makes the module the parent of what the method creates, gives the
call a name in profiles, runs interceptors, and offers the output to `capture_intermediates`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import jax

from sonde.errors import CallCompactUnboundModuleError, InvalidInstanceModuleError, LayerInputError
from sonde.flax.flags import flag
from sonde.linen.modules.attach import describe, is_module
from sonde.linen.modules.context import context
from sonde.linen.variables import sites

if TYPE_CHECKING:
    from sonde.linen.modules.module import Module

F = TypeVar("F", bound=Callable[..., Any])
_named_by_default: bool = flag("flax_profile")
_NOTHING = contextlib.nullcontext()


def compact(fun: F) -> F:
    """Marks a method in which submodules and variables may be made where they are used.

    Example:
        >>> from sonde import linen as nn
        >>> class Block(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         return nn.relu(nn.Dense(3)(x))
        >>> import jax
        >>> list(Block().init(jax.random.key(0), jax.numpy.ones((1, 2)))["params"])
        ['Dense_0']
    """
    fun.compact = True  # pyright: ignore[reportFunctionMemberAccess]
    return fun


def nowrap(fun: F) -> F:
    """Marks a method that is not wrapped: it may be called without variables, and its module is not made a parent."""
    fun.nowrap = True  # pyright: ignore[reportFunctionMemberAccess]
    return fun


def compact_name_scope(fun: F) -> F:
    """A compact method whose submodules and variables are in a scope named after the method.

    Several methods of a class may be marked this way; their names do not clash.
    """

    @functools.wraps(fun)
    def scoped(self: Module, *args: Any, **kwargs: Any) -> Any:
        outer = self.scope
        if outer is None:
            raise _unbound(self, fun.__name__)
        inner = self.clone(parent=outer.child(fun.__name__))
        object.__setattr__(inner, "_state", self._state.for_transform())
        inner._state.cursor = {}
        inner._state.in_compact = True
        with context.calling(inner):
            return fun(inner, *args, **kwargs)

    scoped.name_scope = True  # pyright: ignore[reportFunctionMemberAccess, reportAttributeAccessIssue]
    scoped.compact = True  # pyright: ignore[reportFunctionMemberAccess, reportAttributeAccessIssue]
    return scoped  # pyright: ignore[reportReturnType]


@dataclasses.dataclass(frozen=True)
class InterceptorContext:
    """What an interceptor learns about a call.

    Attributes:
        module: The module whose method is called.
        method_name: The name of the method.
        orig_method: The method as the class defines it, bound to the module.
    """

    module: Module
    method_name: str
    orig_method: Callable[..., Any]


@contextlib.contextmanager
def intercept_methods(interceptor: Callable[..., Any]) -> Iterator[None]:
    """Wraps every method call inside the block in a function.

    The interceptor is called as `interceptor(next_fun, args, kwargs, context)`, and its result is the result of the
    call. The interceptor that was entered first is outermost.

    Example:
        >>> from sonde import linen as nn
        >>> import jax
        >>> def twice(next_fun, args, kwargs, context):
        ...     return next_fun(*args, **kwargs) * 2
        >>> with nn.intercept_methods(twice):
        ...     float(nn.Dropout(0.5, deterministic=True).apply({}, 1.0))
        2.0
    """
    context.interceptors.append(interceptor)
    try:
        yield
    finally:
        context.interceptors.pop()


def enable_named_call() -> None:
    """Gives method calls names in profiles, permanently; this is the default."""
    global _named_by_default
    _named_by_default = True


def disable_named_call() -> None:
    """Stops giving method calls names in profiles, permanently."""
    global _named_by_default
    _named_by_default = False


@contextlib.contextmanager
def override_named_call(enable: bool = True) -> Iterator[None]:
    """Sets for a block whether method calls get names in profiles."""
    before, context.named = context.named, enable
    try:
        yield
    finally:
        context.named = before


def _profile_name(module: Module, method: str) -> str | None:
    if not (_named_by_default if context.named is None else context.named):
        return None
    name = module.name or type(module).__name__
    return name if method == "__call__" else f"{name}.{method}"


def _unbound(module: Module, method: str) -> CallCompactUnboundModuleError:
    return CallCompactUnboundModuleError(
        f"compact method {type(module).__name__}.{method} was called on a module without variables; call it inside "
        "another module, or through init, apply or bind"
    )


def wrap(fun: Callable[..., Any]) -> Callable[..., Any]:
    """The wrapper that replaces `fun` in the class."""
    if hasattr(fun, "__wrapped_method__"):
        return fun
    is_compact = getattr(fun, "compact", False)

    @functools.wraps(fun)
    def method(*args: Any, **kwargs: Any) -> Any:
        first = args[0] if args else None
        if not is_module(first):  # a method of a lifted class, called as a plain function of something else
            return fun(*args, **kwargs)
        return call(first, fun, is_compact, args[1:], kwargs)

    method.__wrapped_method__ = fun  # pyright: ignore[reportFunctionMemberAccess, reportAttributeAccessIssue]
    # Packages that put their own function around a method (qwix) look for this mark, and unwrap what has it.
    method.method_handler_wrapped = True  # pyright: ignore[reportFunctionMemberAccess, reportAttributeAccessIssue]
    return method


def call(self: Module, fun: Callable[..., Any], is_compact: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls a method of a module as described at the top of this file."""
    self.check_post_init()
    name = getattr(fun, "__name__", "unnamed_function")
    state = self._state
    scope = self.scope
    if scope is None:
        if is_compact:
            raise _unbound(self, name)
    else:
        scope.check_live()
        if not getattr(fun, "sets_up_inside", False):
            self._set_up()
    # A compact method that is called by another one goes on with its names.
    outermost = is_compact and not state.in_compact
    if is_compact:
        state.in_compact = True
    profile_name = _profile_name(self, name)
    context.module_stack.append(self)
    try:
        with (
            jax.named_scope(profile_name) if profile_name else _NOTHING,
            sites.under_path(scope) if scope is not None else _NOTHING,
        ):
            is_lifted = getattr(fun, "transparent", False)
            is_call = scope is not None and not is_lifted
            run = functools.partial(fun, self) if is_lifted else intercepted(self, fun, name)
            if is_call and (end := sites.wanted_ends(self, name, fun)) is not None:
                output = sites.call_with_ends(self, end, fun, run, args, kwargs)
            else:
                output = run(*args, **kwargs)
        if is_call and scope is not None and scope.run.capture:
            sites.offer(self, name, output)
        return output
    except LayerInputError as error:
        if error.place is None:  # raised by `sonde.ops`, which does not know the module
            error.place = describe(self)
        raise
    finally:
        context.module_stack.pop()
        if is_compact:
            if self.scope is not None:
                # Names are free again: the next call of the method must find the variables that this one made.
                object.__setattr__(self, "scope", self.scope.rewound())
            if outermost:
                state.forget_call()


def intercepted(self: Module, fun: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A method, bound to its module, with all interceptors around it."""
    bound = functools.partial(fun, self)
    if not context.interceptors:
        return bound
    described = InterceptorContext(self, name, bound)

    def around(interceptor: Callable[..., Any], inner: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: interceptor(inner, args, kwargs, described)

    run = bound
    for interceptor in reversed(context.interceptors):
        run = around(interceptor, run)
    return run


def prepare_class(cls: type[Any]) -> None:
    """Wraps the methods that a new module class itself defines."""
    inherited = [name for name in getattr(cls, "_compact_name_scope_methods", ()) if name not in vars(cls)]
    own = [name for name, value in vars(cls).items() if getattr(value, "name_scope", False)]
    cls._compact_name_scope_methods = (*inherited, *own)
    for name, value in list(vars(cls).items()):
        if name.startswith("__") and name != "__call__":
            continue
        if inspect.isfunction(value) and not getattr(value, "nowrap", False):
            setattr(cls, name, wrap(value))


class OnInstances:
    """A method that raises a clear error when it is called on the class."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__doc__ = function.__doc__

    def __get__(self, instance: Any, owner: type[Any]) -> Any:
        if instance is None:
            return _CalledOnClass(self.function, owner)
        return self.function.__get__(instance, owner)


class _CalledOnClass:
    """The value of `Module.apply`: callable through `super()` or with an instance, an error otherwise."""

    def __init__(self, function: Callable[..., Any], owner: type[Any]) -> None:
        self.__wrapped__ = function
        self.__doc__ = function.__doc__
        self._owner = owner

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not args or not isinstance(args[0], self._owner):
            name, owner = self.__wrapped__.__name__, self._owner.__name__
            raise InvalidInstanceModuleError(
                f"{owner}.{name} was called on the class: make an instance first, as in {owner}(...).{name}(...)"
            )
        return self.__wrapped__(*args, **kwargs)
