"""Methods of a model that is given as (GraphDef, State), as pure functions: `call`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sonde.nnx.structure.graph_def import GraphDef
from sonde.nnx.structure.split_merge import merge, split


class ApplyCaller:
    """What `call` returns: attributes and items select a part of the object, and calling it runs that part.

    The result of a call is a pair of the output and the new (GraphDef, State).
    """

    def __init__(self, run: Callable[..., Any], path: tuple[tuple[str, Any], ...] = ()):
        self._run = run
        self._path = path

    def __getattr__(self, name: str) -> ApplyCaller:
        if name.startswith("__"):
            raise AttributeError(name)
        return ApplyCaller(self._run, (*self._path, ("attribute", name)))

    def __getitem__(self, key: Any) -> ApplyCaller:
        return ApplyCaller(self._run, (*self._path, ("item", key)))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the method; returns its output and the new (GraphDef, State)."""
        return self._run(self._path, *args, **kwargs)


def call(graphdef_state: tuple[GraphDef[Any], Any], /) -> ApplyCaller:
    """Calls methods of a model that is given as (GraphDef, State), as pure functions.

    Example:
        >>> from sonde import nnx
        >>> class Counter(nnx.Module):
        ...     def __init__(self):
        ...         self.n = nnx.Variable(0)
        ...     def add(self, x):
        ...         self.n.set_value(self.n.get_value() + x)
        ...         return self.n.get_value()
        >>> out, (graphdef, state) = nnx.call(nnx.split(Counter())).add(2)
        >>> out
        2
    """

    def run(path: tuple[tuple[str, Any], ...], *args: Any, **kwargs: Any) -> Any:
        graphdef, state = graphdef_state
        target = node = merge(graphdef, state, copy=True)
        for how, key in path:
            target = getattr(target, key) if how == "attribute" else target[key]
        out = target(*args, **kwargs)
        return out, split(node)

    return ApplyCaller(run)
