"""Flax's names for what a scope does, for packages that work on `module.scope`.

Such packages make variables where `Module.param` does not allow them, in methods that are not compact. A method that is
missing here raises an AttributeError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from sonde.errors import ModifyScopeVariableError

if TYPE_CHECKING:
    from sonde.linen.variables.filters import Filter
    from sonde.linen.variables.scope import Scope


class ScopeNames:
    """The methods of `flax.core.Scope` that `Scope` has under other names."""

    __slots__ = ()

    @property
    def root(self) -> Scope:
        """The outermost scope of the run, or of the lifted transform around this one."""
        *_, last = _scope(self).ancestors()
        return last

    @property
    def mutable(self) -> Filter:
        """Which collections may change."""
        return _scope(self).run.mutable

    @property
    def invalid(self) -> bool:
        """Whether the run has ended."""
        return not _scope(self).run.live

    def variables(self) -> dict[str, Any]:
        """The variables here and below, by collection."""
        return _scope(self).collections()

    def mutable_variables(self) -> dict[str, Any]:
        """The variables here and below that may change, by collection."""
        return {name: tree for name, tree in self.variables().items() if self.is_mutable_collection(name)}

    def is_mutable_collection(self, col: str) -> bool:
        """Whether a collection may change."""
        return _scope(self).is_mutable(col)

    def is_collection_empty(self, col: str) -> bool:
        """Whether the run has nothing in a collection."""
        return not self.root.collection(col)

    def has_variable(self, col: str, name: str) -> bool:
        """Whether a variable exists."""
        return _scope(self).has(col, name)

    def get_variable(self, col: str, name: str, default: Any = None) -> Any:
        """The value of a variable, in its box if it has one, or `default`."""
        return _scope(self).get(col, name, default)

    def put_variable(self, col: str, name: str, value: Any) -> None:
        """Sets a variable."""
        _scope(self).put(col, name, value)

    def has_rng(self, name: str) -> bool:
        """Whether a random stream was given."""
        return name in _scope(self).streams

    def name_reserved(self, name: str, col: str | None = None) -> bool:
        """Whether a name is taken for a submodule (None) or for a variable of the collection."""
        return _scope(self).is_reserved(name, col)

    def _collection(self, col: str) -> Mapping[str, Any]:
        return _scope(self).collection(col)

    def _mutable_collection(self, col: str) -> dict[str, Any]:
        scope = _scope(self)
        if not scope.is_mutable(col):
            raise ModifyScopeVariableError(
                f"collection {col!r} of module {scope.path_text} is immutable; pass mutable={[col]!r} to apply"
            )
        return scope._writable(col)


def _scope(scope: ScopeNames) -> Scope:
    return cast("Scope", scope)
