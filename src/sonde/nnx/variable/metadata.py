"""The metadata of Variables, hooks included: a frozen mapping that many Variables share.

Most Variables of a model carry the same few entries, so a `Metadata` is made once, shared, and replaced as a whole when
a Variable's metadata is edited. JAX sees it as the static part of a Variable, so it can be hashed and compared; entries
that cannot be hashed count for comparison only.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from sonde.flax.release import follows
from sonde.nnx.variable import defaults

F = TypeVar("F", bound=Callable[..., Any])

#: Entries that every Variable has. `ref`, and with older JAX `hijax`, keep the value in array references.
REQUIRED = ("hijax", "ref", "eager_sharding")
HOOKS = ("on_get_value", "on_set_value", "on_create_value", "on_add_axis", "on_remove_axis")


def structural_hash(value: object) -> int:
    """A hash that falls back to the type for what cannot be hashed; equal values still have equal hashes."""
    try:
        return hash(value)
    except TypeError:
        return hash(type(value))


class Metadata(Mapping[str, Any]):
    """An immutable, comparable mapping of a Variable's metadata.

    Attributes:
        by_reference: Whether the value is held in array references.
        hooked: Whether there are hooks.
        reads_hooked: Whether reading the value runs more than a lookup.
        keeps_out: Whether functions under JAX's own transforms must not write to the Variable.
        is_inside: Whether the Variable, with `hijax=True`, is one that JAX made for such a function.
    """

    __slots__ = (
        "_entries",
        "_hash",
        "_inside",
        "by_reference",
        "hooked",
        "is_inside",
        "keeps_out",
        "reads_hooked",
    )

    def __init__(self, entries: Mapping[str, Any]):
        self._entries = dict(entries)
        self._hash: int | None = None
        self.hooked = any(name in self._entries for name in HOOKS)
        hijax, ref = bool(self._entries.get("hijax")), bool(self._entries.get("ref"))
        # From Flax 0.12.12 on, `hijax` alone means a value that is an array everywhere; before, one to write to.
        self.keeps_out = hijax and not ref and follows(0, 12, 12)
        self.by_reference = ref or (hijax and not self.keeps_out)
        self.is_inside = False
        self._inside: Metadata | None = None
        self.reads_hooked = self.by_reference or "on_get_value" in self._entries

    def __getitem__(self, name: str) -> Any:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def get(self, name: str, default: Any = None) -> Any:
        """The entry, or `default`."""
        return self._entries.get(name, default)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Metadata) and self._entries == other._entries

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(tuple(sorted((k, structural_hash(v)) for k, v in self._entries.items())))
        return self._hash

    def __repr__(self) -> str:
        return repr({k: v for k, v in self._entries.items() if k not in REQUIRED})

    def __reduce__(self) -> Any:
        return shared, (self._entries,)

    def inside(self) -> Metadata:
        """The metadata of a Variable that JAX made inside of a transformed function; equal to these."""
        if self.is_inside:
            return self
        if self._inside is None:
            self._inside = Metadata(self._entries)
            self._inside.is_inside = True
        return self._inside

    def replaced(self, **changes: Any) -> Metadata:
        """A copy with some entries set."""
        return shared({**self._entries, **changes})

    def without(self, name: str) -> Metadata:
        """A copy without one entry.

        Raises:
            KeyError: There is no such entry.
        """
        entries = dict(self._entries)
        del entries[name]
        return shared(entries)

    def run_hooks(self, name: str, variable: Any, *args: Any) -> Any:
        """Runs one hook, or a sequence of hooks, each on the result of the one before; returns the last value."""
        hooks = self._entries.get(name)
        if hooks is None:
            return args[0]
        value = args[0]
        for hook in hooks if isinstance(hooks, (tuple, list)) else (hooks,):
            value = hook(variable, value, *args[1:])
        return value


@functools.cache
def _plain(hijax: bool, ref: bool, eager_sharding: bool) -> Metadata:
    return Metadata({"hijax": hijax, "ref": ref, "eager_sharding": eager_sharding})


def shared(entries: Mapping[str, Any]) -> Metadata:
    """The Metadata with these entries; Variables without entries share one object."""
    hijax, ref = defaults.current()
    required = {
        "hijax": bool(entries.get("hijax", hijax)),
        "ref": bool(entries.get("ref", ref)),
        "eager_sharding": bool(entries.get("eager_sharding", True)),
    }
    # Most Variables have no entries of their own. They share one object, so comparing them is comparing identities.
    if len(entries) <= 3 and all(name in REQUIRED for name in entries):
        return _plain(**required)
    return Metadata({**entries, **required})


@dataclasses.dataclass(frozen=True)
class VariableMetadata:
    """A value together with metadata for the Variable that will hold it: what a wrapped initializer returns."""

    raw_value: Any
    on_set_value: tuple[Callable[..., Any], ...] = ()
    on_get_value: tuple[Callable[..., Any], ...] = ()
    on_create_value: tuple[Callable[..., Any], ...] = ()
    on_add_axis: tuple[Callable[..., Any], ...] = ()
    on_remove_axis: tuple[Callable[..., Any], ...] = ()
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def entries(self) -> dict[str, Any]:
        """The metadata, with the hooks that are not empty."""
        hooks = {name: getattr(self, name) for name in HOOKS if getattr(self, name)}
        return {**self.metadata, **hooks}


def _as_tuple(hooks: Callable[..., Any] | Sequence[Callable[..., Any]]) -> tuple[Callable[..., Any], ...]:
    return (hooks,) if callable(hooks) else tuple(hooks)


def with_metadata(
    initializer: F,
    on_set_value: Callable[..., Any] | Sequence[Callable[..., Any]] = (),
    on_get_value: Callable[..., Any] | Sequence[Callable[..., Any]] = (),
    on_create_value: Callable[..., Any] | Sequence[Callable[..., Any]] = (),
    on_add_axis: Callable[..., Any] | Sequence[Callable[..., Any]] = (),
    on_remove_axis: Callable[..., Any] | Sequence[Callable[..., Any]] = (),
    **metadata: Any,
) -> F:
    """Wraps an initializer so that the Variable that takes its value also takes metadata and hooks.

    Example:
        >>> from sonde import nnx
        >>> import jax, jax.numpy as jnp
        >>> init = nnx.with_metadata(jax.nn.initializers.ones, role="bias")
        >>> nnx.Param(init(jax.random.key(0), (2,))).role
        'bias'
    """
    hooks = {
        "on_set_value": _as_tuple(on_set_value),
        "on_get_value": _as_tuple(on_get_value),
        "on_create_value": _as_tuple(on_create_value),
        "on_add_axis": _as_tuple(on_add_axis),
        "on_remove_axis": _as_tuple(on_remove_axis),
    }

    @functools.wraps(initializer)
    def wrapper(*args: Any, **kwargs: Any) -> VariableMetadata:
        return VariableMetadata(initializer(*args, **kwargs), **hooks, metadata=metadata)

    return wrapper  # type: ignore[return-value]
