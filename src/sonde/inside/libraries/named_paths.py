"""Scopes of modules that know their own path, as in linen and Haiku."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sonde import _jax
from sonde.core import ScopeName, capture_state, without_functions
from sonde.inside.instrumented import current_run
from sonde.inside.method_hooks import between_sites

Path = tuple[str, ...]


class _NamedPath(ScopeName):
    """A module's path below that of the module that calls it; if the caller does not own it, its own path instead.

    Functions marked by `inside=` between the two are not part of it, as with modules that are found by identity.
    """

    own: Path = ()
    around: Path = ()

    def path(self, before: str, depth: int) -> str:
        """The path, with a trailing slash, of what is inside."""
        before = without_functions(before)
        n = len(self.around)
        if self.own[:n] == self.around:
            return before + "".join(f"{name}/" for name in self.own[n:])
        outer = "".join(f"{name}/" for name in self.around)
        start = f"/{before}".rfind(f"/{outer}")
        return before[: max(start, 0)] + "".join(f"{name}/" for name in self.own)


@contextlib.contextmanager
def scope_of(path: Path, root: Any) -> Iterator[None]:
    """The scope of a module with a path.

    Args:
        path: The path.
        root: The object that paths start from; each run of the model has its own. None: that of the module around.
    """
    open_modules = current_run().open_modules
    before = open_modules[-1] if open_modules else None
    if root is None and before is not None:
        root = before[1]
    name = _NamedPath("/".join(path) or "module")
    name.own, name.around = path, before[0] if before is not None and before[1] is root else ()
    open_modules.append((path, root))
    try:
        with _jax.open_name(name):
            yield
    finally:
        open_modules.pop()


def run_named(
    opened: contextlib.AbstractContextManager[Any],
    module: Any,
    method: str,
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    original: Any,
    hook: Callable[..., Any],
) -> Any:
    """Calls a method of a module with a path, as a scope with sites if a capture looks at the method.

    Args:
        opened: The scope, as `scope_of` gives it.
        module: The module.
        method: The name of the method.
        fn: The method, bound.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        original: The function, for its line.
        hook: The hook that observes the call.
    """
    state = capture_state()
    if state is None or state.inside is None or not (depths := state.inside.hook_depths(hook, method)):
        return fn(*args, **kwargs)
    open_methods = current_run().open_methods
    if open_methods and open_methods[-1][0] is module and open_methods[-1][1] == method:  # by `super()`
        return fn(*args, **kwargs)
    open_methods.append((module, method))
    try:
        with opened:
            return between_sites(method, fn, tuple(args), dict(kwargs), original, depths)
    finally:
        open_methods.pop()
