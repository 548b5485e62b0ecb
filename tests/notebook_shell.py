"""A notebook's shell in this process: cells run through IPython itself."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import io
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any


class Shell:
    """Runs cells as a notebook does, each compiled and displayed by IPython."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self.namespace: dict[str, Any] = shell.user_ns
        self.printed = ""

    def run(self, cell: str) -> str:
        """Runs a cell; returns what it prints, and raises what it raises."""
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            result = self._shell.run_cell(cell, store_history=True)
        self.printed = printed.getvalue()
        error = result.error_before_exec or result.error_in_exec
        if error is not None:
            raise error
        return self.printed


@contextlib.contextmanager
def notebook(module_name: str = "__main__", *, shows_results: bool = True) -> Iterator[Shell]:
    """A new notebook. Its functions belong to a module of this name while it is open.

    Args:
        module_name: The name of the module.
        shows_results: Whether a last line that is an expression is printed.
    """
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False
    config.HistoryManager.hist_file = ":memory:"
    module = types.ModuleType(module_name)
    before = {name: sys.modules.get(name) for name in (module_name, "__main__")}
    hooks = sys.displayhook, sys.excepthook, vars(builtins).copy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of IPython, about the place of its settings
        shell = InteractiveShell(config=config, user_module=module)
        # `get_ipython()` is the shell of the process, as in a notebook.
        InteractiveShell._instance = shell
    if not shows_results:
        shell.ast_node_interactivity = "none"
    shell.showtraceback = lambda *args, **kwargs: None  # the error is raised instead
    shell.showsyntaxerror = lambda *args, **kwargs: None
    try:
        yield Shell(shell)
    finally:
        InteractiveShell._instance = None
        atexit.unregister(shell.atexit_operations)
        shell.atexit_operations()
        for name, old in before.items():
            sys.modules.pop(name, None)
            if old is not None:
                sys.modules[name] = old
        sys.displayhook, sys.excepthook = hooks[:2]
        for name in vars(builtins).keys() - hooks[2].keys():
            delattr(builtins, name)
