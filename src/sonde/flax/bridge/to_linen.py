"""`ToLinen`: an nnx Module, or a module of the other library, as a module of linen.

The Module is made again in every run, from its class and arguments, and gets the variables that linen has for it. The
class uses only names that `sonde.linen` and `flax.linen` share, so that `for_flax` can define the same class for Flax.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sonde import linen
from sonde.errors import ScopeParamNotFoundError
from sonde.flax.bridge.libraries import Library, is_linen, library_of
from sonde.flax.bridge.to_nnx import call_method
from sonde.flax.bridge.variables import leaves_of, state_without_keys, to_collections, to_linen_var, to_nnx_var


class HostOfNnx:
    """The behavior of `ToLinen`, for either library."""

    nnx_class: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    skip_rng: bool
    metadata_fn: Callable[[Any], Any] | None

    def _run(self: Any, args: tuple[Any, ...], method: Callable[..., Any] | str | None, kwargs: dict[str, Any]) -> Any:
        keys = {name: self.make_rng(name) for name in _streams(self.scope)}
        if is_linen(self.nnx_class):
            return self._run_linen(keys, args, method, kwargs)
        library = library_of(self.nnx_class)
        first = self.is_initializing()
        if not first:
            # The constructor draws initial values again; they are replaced at once, so any key will do.
            keys.setdefault("default", 0)
        keywords = dict(self.kwargs) if self.skip_rng else {**self.kwargs, "rngs": library.nnx.Rngs(**keys)}
        module = self.nnx_class(*self.args, **keywords)
        if first:
            self._store(module, library)
        else:
            self._fill(module, library)
        out = call_method(module, method)(*args, **kwargs)
        if not first:
            self._store(module, library)
        return out

    def _fill(self: Any, module: object, library: Library) -> None:
        """Gives a new Module the variables that linen has for it."""
        nnx = library.nnx
        stored = {}
        for collection, tree in self.variables.items():
            for path, value in leaves_of(tree):
                stored[path] = to_nnx_var(collection, value, nnx)
        missing = [
            path
            for path, variable in leaves_of(state_without_keys(module, library))
            if isinstance(variable, nnx.Param) and path not in stored
        ]
        if missing and not self.is_mutable_collection("params"):
            raise ScopeParamNotFoundError(
                f"{type(self).__name__} of {self.nnx_class.__name__}: the variables have no parameter "
                f"{', '.join('/'.join(map(str, path)) for path in missing[:5])}. Pass those that `init` returned."
            )
        nnx.update(module, nnx.from_flat_state(stored))

    def _store(self: Any, module: object, library: Library) -> None:
        as_value = self.metadata_fn or (lambda variable: variable.get_value())
        for collection, tree in to_collections(state_without_keys(module, library), as_value).items():
            self._put(collection, tree)

    def _put(self: Any, collection: str, tree: Mapping[str, Any]) -> None:
        if self.is_mutable_collection(collection):
            for name, value in tree.items():
                self.put_variable(collection, name, value)

    def _run_linen(
        self: Any,
        keys: dict[str, Any],
        args: tuple[Any, ...],
        method: Callable[..., Any] | str | None,
        kwargs: dict[str, Any],
    ) -> Any:
        module = self.nnx_class
        if self.is_initializing():
            out, changed = module.init_with_output(keys, *args, method=method, **kwargs)
        else:
            mutable = _mutable(self.scope, library_of(module))
            out = module.apply(self.variables, *args, rngs=keys, method=method, mutable=mutable, **kwargs)
            out, changed = out if mutable is not False else (out, {})
        for collection, tree in changed.items():
            self._put(collection, tree)
        return out


def _streams(scope: Any) -> list[str]:
    """The names of the random streams of a run."""
    return list(scope.streams if hasattr(scope, "streams") else scope.rngs)


def _mutable(scope: Any, guest: Library) -> Any:
    """Which collections may change, as a filter of the inner module's library."""
    chosen = scope.run.mutable if hasattr(scope, "run") else scope.mutable
    if hasattr(chosen, "deny"):
        if guest.name == "sonde":
            return linen.DenyList(chosen.deny)
        from flax.core import DenyList

        return DenyList(chosen.deny)
    return chosen


class ToLinen(HostOfNnx, linen.Module):
    """An nnx Module, of Sonde or of Flax, as a module of linen; or a linen module of Flax as one of Sonde.

    Its random streams are not kept: every run makes them from linen's keys.

    Attributes:
        nnx_class: The class of the Module; or a linen module of the other library.
        args: The arguments of the class.
        kwargs: Its keyword arguments.
        skip_rng: Whether its class takes no `rngs`.
        metadata_fn: Converts a Variable to what linen stores: by default its value, in a box if it has metadata.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from sonde import nnx
        >>> layer = nnx.bridge.ToLinen(nnx.Linear, args=(2, 3))
        >>> variables = layer.init(jax.random.key(0), jnp.ones((1, 2)))
        >>> layer.apply(variables, jnp.ones((1, 2))).shape
        (1, 3)
    """

    nnx_class: Any
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = linen.FrozenDict({})
    skip_rng: bool = False
    metadata_fn: Callable[[Any], Any] | None = to_linen_var

    @linen.compact
    def __call__(self, *args: Any, nnx_method: Callable[..., Any] | str | None = None, **kwargs: Any) -> Any:
        """Calls the Module.

        Args:
            *args: Its arguments.
            nnx_method: A method to call instead, or its name.
            **kwargs: Its keyword arguments.

        Returns:
            What it returns.
        """
        return self._run(args, nnx_method, kwargs)

    def __getattr__(self, name: str) -> Any:
        return method_of(self, name) or super().__getattr__(name)


def method_of(host: Any, name: str) -> Any:
    """A method of the Module inside, as a method of the host; None if there is none."""
    if name.startswith("_"):
        return None
    inside = vars(host).get("nnx_class")
    method = getattr(inside, name, None) if isinstance(inside, type) else None
    return functools.partial(host.__call__, nnx_method=method) if callable(method) else None


def to_linen(
    nnx_class: Callable[..., Any],
    *args: Any,
    metadata_fn: Callable[[Any], Any] | None = to_linen_var,
    name: str | None = None,
    skip_rng: bool = False,
    **kwargs: Any,
) -> ToLinen:
    """A linen module from a class of nnx Modules and its arguments; see `ToLinen`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from sonde import nnx
        >>> variables = nnx.bridge.to_linen(nnx.Linear, 2, out_features=3).init(jax.random.key(0), jnp.ones((1, 2)))
        >>> variables["params"]["kernel"].shape
        (2, 3)
    """
    return ToLinen(
        nnx_class, args=args, kwargs=linen.FrozenDict(kwargs), metadata_fn=metadata_fn, skip_rng=skip_rng, name=name
    )


def to_linen_class(
    base_nnx_class: type, base_metadata_fn: Callable[[Any], Any] | None = to_linen_var, base_skip_rng: bool = False
) -> type[ToLinen]:
    """A class of linen modules from a class of nnx Modules: `to_linen_class(nnx.Linear)(args=(2, 3))`."""

    class Linen(ToLinen):
        nnx_class: Any = base_nnx_class
        args: Sequence[Any] = ()
        kwargs: Mapping[str, Any] = linen.FrozenDict({})
        skip_rng: bool = base_skip_rng
        metadata_fn: Callable[[Any], Any] | None = base_metadata_fn

    Linen.__name__ = Linen.__qualname__ = f"ToLinen{base_nnx_class.__name__}"
    return Linen
