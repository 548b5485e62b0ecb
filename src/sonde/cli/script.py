"""Runs a script as `python` does, and has it watched from the moment it has imported JAX.

Nothing is imported here that the script might set up first: JAX reads environment variables when it is imported.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sonde.cli.watched_script import Watch


class Stopped(BaseException):
    """Ends a script in which something was found; not an `Exception`, which the script may catch."""


def run_script(
    script: str, args: Sequence[str], *, is_module: bool, make_watch: Callable[[], Watch]
) -> tuple[Watch, BaseException | None]:
    """Runs a script or a module as `python` does.

    Args:
        script: The file, or the name of the module.
        args: What the script finds in `sys.argv`.
        is_module: Whether it is a module.
        make_watch: Makes what watches the script, once JAX is imported.

    Returns:
        What has watched it, and the exception that ended it, if one did.
    """
    made: list[Watch] = []
    patches = contextlib.ExitStack()

    def start() -> None:
        from sonde.cli.watched_script import watching

        made.append(make_watch())
        patches.enter_context(watching(made[0]))

    error: BaseException | None = None
    names: dict[str, Any] = {}
    with patches, _started_as_script(script, args, is_module=is_module), _when_imported("jax", start):
        try:
            if is_module:
                names = runpy.run_module(script, run_name="__main__", alter_sys=True)
            else:
                names = runpy.run_path(script, run_name="__main__")
        except BaseException as raised:
            error = raised
        if not made:  # a script without JAX
            made.append(make_watch())
        watch = made[0]
        try:
            error = _look_at_the_end(watch, error)
        finally:
            watch.flush()
    if error is None:
        watch.look_at_variables(names)
    return watch, error


def _look_at_the_end(watch: Watch, error: BaseException | None) -> BaseException | None:
    """Looks at what is pending when a script has ended; returns the exception that ended it, if that is its own."""
    if isinstance(error, Stopped):
        return None
    try:
        if error is None or isinstance(error, SystemExit):
            watch.look()
        else:
            watch.explain_failure(error)
    except Stopped:
        return None
    return error


@contextlib.contextmanager
def _started_as_script(script: str, args: Sequence[str], *, is_module: bool) -> Iterator[None]:
    """Inside the block, `sys.argv` and the first folder that is imported from are as `python` sets them."""
    before = sys.argv, list(sys.path)
    sys.argv = [script, *args]
    sys.path.insert(0, "" if is_module else str(Path(script).resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before


@contextlib.contextmanager
def _when_imported(name: str, do: Callable[[], None]) -> Iterator[None]:
    """Does something as soon as a module is imported; at once if it is already."""
    if name in sys.modules:
        do()
        yield
        return
    finder = _Finder(name, do)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        finder.remove()


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module as the other finders do, and does something when it has been imported."""

    def __init__(self, name: str, do: Callable[[], None]) -> None:
        self._name, self._do = name, do

    def remove(self) -> None:
        """Finds nothing any more."""
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """The module, if it is the one."""
        if fullname != self._name:
            return None
        self.remove()
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                self._do()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
