"""`ToNNX`: a module of linen, or of the other library, as an nnx Module.

The inner module's variables become Variables of the outer Module, in attributes of the same names. The class uses only
names that `sonde.nnx` and `flax.nnx` share, so that `for_flax` can define the same class for Flax.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import jax

from sonde import nnx
from sonde.flax.bridge.libraries import SONDE, Library, is_linen, library_of
from sonde.flax.bridge.variables import leaves_of, put_at, to_attributes, to_collections, translated
from sonde.linen.variables.filters import Filter

_initializing: contextvars.ContextVar[bool] = contextvars.ContextVar("sonde_bridge_initializing", default=False)
Seeds = nnx.Rngs | nnx.RngStream | Mapping[str, Any] | jax.Array | int | None
"""Random streams, one stream, keys by name, or one key."""
#: The metadata entry that holds a Variable's type in the inner module's library.
GUEST_TYPE = "guest_type"


@contextlib.contextmanager
def initializing() -> Iterator[None]:
    """Makes calls of `ToNNX` initialize the module inside."""
    token = _initializing.set(True)
    try:
        yield
    finally:
        _initializing.reset(token)


def lazy_init(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a Module so that the linen modules in it make their variables.

    Args:
        fn: A Module, a method of one, or a method of the linen module inside a `ToNNX`.
        *args: Its arguments.
        **kwargs: Its keyword arguments.

    Returns:
        The Module.

    Example:
        >>> import jax.numpy as jnp
        >>> from sonde import linen, nnx
        >>> model = nnx.bridge.ToNNX(linen.Dense(3), rngs=nnx.Rngs(0))
        >>> nnx.bridge.lazy_init(model, jnp.ones((1, 2))).kernel.shape
        (2, 3)
    """
    owner = fn.func if isinstance(fn, functools.partial) else fn
    owner = getattr(owner, "__self__", owner)
    if not callable(fn):
        raise TypeError(f"lazy_init takes a Module or a method of one, got {fn!r}.")
    with initializing():
        fn(*args, **kwargs)
    return owner


def keys_of(rngs: Any) -> dict[str, Any]:
    """Keys by name, as linen takes them: one from each stream; the default stream becomes `params`."""
    if rngs is None:
        return {}
    if isinstance(rngs, Mapping):
        keys: dict[str, Any] = dict(rngs)
    elif hasattr(rngs, "items"):
        keys = {name: stream() for name, stream in rngs.items()}
    else:
        keys = {"params": rngs() if callable(rngs) else rngs}
    if "default" in keys and "params" not in keys:
        keys["params"] = keys.pop("default")
    return keys


class HostOfLinen:
    """The behavior of `ToNNX`, for either library."""

    _library: Library
    to_nnx__module: Any
    to_nnx__rngs: Any

    def _hold(self, module: object, rngs: nnx.Rngs | nnx.RngStream | None) -> None:
        host = self._library.nnx
        if is_linen(module):
            self.to_nnx__module = module
        else:
            self.to_nnx__module = _Definition.of(module, library_of(module))
        stream = host.Rngs(params=rngs) if isinstance(rngs, host.RngStream) else rngs
        self.to_nnx__rngs = host.data(None if stream is None else stream.fork())
        if not is_linen(module):
            self._take(_guest_attributes(module, library_of(module), host))

    def _take(self, attributes: Mapping[str, Any]) -> None:
        """Replaces Variables whose value changed. States that hold the old Variables keep their values."""
        own_variables = self._attributes()
        own_by_path = dict(leaves_of(own_variables))
        replaced_names = set()
        for path, variable in leaves_of(attributes):
            existing: Any = own_by_path.get(path)
            if type(existing) is not type(variable) or existing.get_raw_value() is not variable.get_raw_value():
                put_at(own_variables, path, variable)
                replaced_names.add(path[0])
        for name in sorted(replaced_names):
            value = own_variables[name]
            setattr(self, name, self._library.nnx.data(value) if isinstance(value, dict) else value)

    def _attributes(self) -> dict[str, Any]:
        own = {name: value for name, value in vars(self).items() if not name.startswith(("to_nnx__", "_"))}
        kind = self._library.nnx.Variable
        nested: dict[str, Any] = {}
        for path, value in leaves_of(own):
            if isinstance(value, kind):
                put_at(nested, path, value)
        return nested

    def __getattr__(self, name: str) -> Any:
        module = vars(self).get("to_nnx__module")
        inside = module.cls if isinstance(module, _Definition) else type(module)
        method = None if name.startswith("_") or module is None else getattr(inside, name, None)
        if not callable(method):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return functools.partial(self.__call__, method=method)  # type: ignore[attr-defined]

    def _run(
        self,
        rngs: Seeds,
        method: Callable[..., Any] | str | None,
        mutable: Filter | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        module = self.to_nnx__module
        if isinstance(module, _Definition):
            out, attributes = module.call(self._attributes(), method, args, kwargs, self._library.nnx)
            self._take(attributes)
            return out
        keys = keys_of(self.to_nnx__rngs if rngs is None else rngs)
        if _initializing.get():
            out, variables = module.init_with_output(keys, *args, method=method, **kwargs)
            self._take(to_attributes(variables, self._library.nnx))
            return out
        variables = to_collections(self._attributes())
        if mutable is None or mutable is False:
            return module.apply(variables, *args, rngs=keys, method=method, **kwargs)
        out, changed = module.apply(variables, *args, rngs=keys, method=method, mutable=mutable, **kwargs)
        self._take(to_attributes(changed, self._library.nnx))
        return out


class _Definition:
    """The structure of an nnx module of the other library, to be merged with Variables for a call."""

    def __init__(self, graphdef: Any, cls: type, library: Library):
        self.graphdef = graphdef
        self.cls = cls
        self.library = library

    @classmethod
    def of(cls, module: Any, library: Library) -> _Definition:
        return cls(library.nnx.graphdef(module), type(module), library)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Definition) and self.graphdef == other.graphdef

    def __hash__(self) -> int:
        return hash(self.graphdef)

    def call(
        self,
        attributes: dict[str, Any],
        method: Callable[..., Any] | str | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        host: ModuleType,
    ) -> tuple[Any, Any]:
        """Calls the module with these Variables; returns the result and the Variables after it."""
        guest = self.library.nnx
        flat = {path: _as_guest(variable, guest) for path, variable in leaves_of(attributes)}
        module = guest.merge(self.graphdef, guest.from_flat_state(flat))
        called = module if method is None else getattr(module, method if isinstance(method, str) else method.__name__)
        out = called(*args, **kwargs)
        self.graphdef = guest.graphdef(module)
        return out, _guest_attributes(module, self.library, host)


def _as_guest(variable: nnx.Variable[Any], guest: ModuleType) -> Any:
    metadata = variable.get_metadata()
    kind = metadata.pop(GUEST_TYPE, None)
    if kind is None:
        return translated(variable, guest)
    return kind.from_metadata(variable.get_raw_value(), metadata)


def _guest_attributes(module: object, library: Library, host: ModuleType) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for path, variable in library.nnx.to_flat_state(library.nnx.state(module)):
        nnx_variable = translated(variable, host)
        nnx_variable.set_metadata(**{GUEST_TYPE: type(variable)})
        put_at(nested, path, nnx_variable)
    return nested


class ToNNX(HostOfLinen, nnx.Module):
    """A module of linen, of Sonde or of Flax, as an nnx Module; or an nnx Module of Flax as one of Sonde.

    A linen module makes its variables when it sees an input: call `lazy_init` once. Methods of the module inside can be
    called as methods of this one.

    Args:
        module: The module.
        rngs: Random streams; they are forked, and every call takes a key from each.

    Attributes:
        to_nnx__module: The module.
        to_nnx__rngs: The streams.

    Example:
        >>> import jax.numpy as jnp
        >>> from sonde import linen, nnx
        >>> model = nnx.bridge.ToNNX(linen.Dense(3), rngs=nnx.Rngs(0)).lazy_init(jnp.ones((1, 2)))
        >>> model.kernel.shape, model(jnp.ones((1, 2))).shape
        ((2, 3), (1, 3))
    """

    _library = SONDE

    def __init__(self, module: Any, rngs: nnx.Rngs | nnx.RngStream | None = None):
        self._hold(module, rngs)

    def __call__(
        self,
        *args: Any,
        rngs: Seeds = None,
        method: Callable[..., Any] | str | None = None,
        mutable: Filter | None = None,
        **kwargs: Any,
    ) -> Any:
        """Calls the module inside.

        Args:
            *args: Its arguments.
            rngs: Streams or keys that replace its own.
            method: A method to call instead, or its name.
            mutable: The collections of linen that the call may change; changes are kept.
            **kwargs: Its keyword arguments.

        Returns:
            What it returns.
        """
        return self._run(rngs, method, mutable, args, kwargs)

    def lazy_init(self, *args: Any, **kwargs: Any) -> ToNNX:
        """The same as `bridge.lazy_init(self, *args, **kwargs)`."""
        return lazy_init(self, *args, **kwargs)


def call_method(module: Any, method: Callable[..., Any] | str | None) -> Callable[..., Any]:
    """A method of a module, given by name, or as a function that takes the module; None for `__call__`."""
    if method is None:
        return module
    return getattr(module, method) if isinstance(method, str) else functools.partial(method, module)
