"""State of the current thread: which modules are being called, and what records their calls."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from sonde.linen.modules.module import Module


Capture: TypeAlias = "bool | Callable[[Module, str], bool]"
"""Which outputs of methods to sow: True for those of `__call__`, or a function of the module and the method's name."""


class Context(threading.local):
    """Per-thread state.

    Attributes:
        module_stack: The modules whose methods are running, innermost last; None stands for "no parent".
        calls: The running calls, innermost last, if a capture wants their arguments and results: the module, the name
            of the method, and the method.
        interceptors: The functions given to `intercept_methods`, innermost last.
        named: Whether method calls get a name in profiles, or None for the process-wide setting.
        level: How many active runs collect sown values.
        silent: Whether sown values are dropped.
        path: During a capture: the path of the module whose method is running, ...
        root: ... and the outermost run it belongs to.
    """

    def __init__(self) -> None:
        self.module_stack: list[Module | None] = [None]
        self.calls: list[tuple[Module, str, Callable[..., Any]]] = []
        self.interceptors: list[Callable[..., Any]] = []
        self.named: bool | None = None
        self.level = 0
        self.silent = False
        self.path: tuple[str, ...] = ()
        self.root: Any = None

    @contextlib.contextmanager
    def calling(self, module: Module | None) -> Iterator[None]:
        """Makes `module` the parent of modules that are created inside the block."""
        self.module_stack.append(module)
        try:
            yield
        finally:
            self.module_stack.pop()


context = Context()
