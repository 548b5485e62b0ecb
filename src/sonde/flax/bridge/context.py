"""The running `bridge.Module`, and the scope that a module is bound to while it runs."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

from sonde import nnx
from sonde.linen.variables.filters import Filter, matches


class Scope(nnx.Pytree):
    """What a module is bound to in one run; nested modules share it.

    It is an attribute of each module, so that transforms see the streams.

    Attributes:
        rngs: The random streams.
        mutable: The collections that the run may change.
    """

    def __init__(self, rngs: nnx.Rngs, mutable: Filter = False, *, initializing: bool = False):
        self.rngs = rngs
        self.mutable = tuple(mutable) if isinstance(mutable, (list, set)) else mutable
        self.initializing = initializing

    def may_change(self, collection: str) -> bool:
        """Whether the run may change a collection."""
        return self.initializing or matches(self.mutable, collection)

    def copy(self) -> Scope:
        """The same streams and collections in a new scope."""
        return Scope(self.rngs, self.mutable, initializing=self.initializing)


@dataclasses.dataclass
class ModuleStackEntry:
    """A module whose method is running.

    Attributes:
        module: The module.
        in_compact: Whether the method is compact: modules made in it become its submodules.
        type_counter: How many unnamed submodules of each class the method has made.
    """

    module: Any
    in_compact: bool
    type_counter: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)


class ModuleContext(threading.local):
    """The modules that run in this thread, outermost first; None at the bottom."""

    def __init__(self) -> None:
        self.module_stack: list[ModuleStackEntry | None] = [None]

    @contextlib.contextmanager
    def running(self, module: nnx.Module, *, in_compact: bool) -> Iterator[None]:
        """Puts a module on the stack for a block."""
        self.module_stack.append(ModuleStackEntry(module, in_compact))
        try:
            yield
        finally:
            self.module_stack.pop()


MODULE_CONTEXT = ModuleContext()


def current_context() -> ModuleStackEntry | None:
    """The innermost running module, with its method; None if none is running."""
    return MODULE_CONTEXT.module_stack[-1]


def current_module() -> Any:
    """The innermost running module; None if none is running."""
    entry = current_context()
    return None if entry is None else entry.module
