"""Options that all transforms share: the mode they run in, and their use as decorators."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from sonde.nnx.modules.pytree import Pytree
from sonde.nnx.structure.mode import resolve, resolve_updates

T = TypeVar("T", bound=Callable[..., Any])

#: Stands for a function that was not given, when a transform is used as a decorator with options.
MISSING: Any = type("Missing", (), {"__repr__": lambda self: "<missing>"})()


class Mode(NamedTuple):
    """How a transform treats its arguments.

    Attributes:
        graph: Whether objects may be shared.
        updates: Whether the function may change the structure of its arguments, and return them.
    """

    graph: bool
    updates: bool


def mode(graph: bool | None, graph_updates: bool | None) -> Mode:
    """The mode that options ask for; None means the current setting. Trees have no updates."""
    graph = resolve(graph)
    return Mode(graph, graph and resolve_updates(graph_updates))


def also_decorator(transform: T) -> T:
    """Lets a transform be called with options alone, as a decorator with arguments.

    The mode is fixed at that moment: a later change of the current mode has no effect.
    """
    first, *option_names = inspect.signature(transform).parameters

    @functools.wraps(transform)
    def transformed(*args: Any, **options: Any) -> Any:
        if args or first in options:
            return transform(*args, **options)
        run_mode = mode(options.get("graph"), options.get("graph_updates"))
        settled = {"graph": run_mode.graph, "graph_updates": run_mode.updates}
        return functools.partial(
            transform, **options | {name: settled[name] for name in settled if name in option_names}
        )

    return transformed  # pyright: ignore[reportReturnType]


def refuse_bound_method(verb: str, fn: Callable[..., Any]) -> None:
    """Refuses a method of a Module instance: the Module would be closed over, and its Variables could not change.

    Raises:
        ValueError: It is a bound method.
    """
    if inspect.ismethod(fn) and isinstance(fn.__self__, Pytree):
        cls, name = type(fn.__self__).__name__, fn.__name__
        raise ValueError(
            f"nnx.{verb} does not support bound methods, got {cls}.{name} of an instance. Decorate the method in the "
            f"class, or pass the instance as an argument: nnx.{verb}({cls}.{name})(instance, ...)."
        )


def positional(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Turns keyword arguments into positional ones, for transforms that know arguments by position.

    Raises:
        TypeError: A keyword has no position.
    """
    if not kwargs:
        return args
    bound = inspect.signature(fn).bind(*args, **kwargs)
    if bound.kwargs:
        raise TypeError(f"The keyword-only arguments {sorted(bound.kwargs)} of {fn} have no position.")
    return bound.args


def with_axes(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], in_axes: object
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arranges arguments as a tuple of axes has them; some may have been given by keyword."""
    if not kwargs or not isinstance(in_axes, (tuple, list)) or len(in_axes) == len(args):
        return args, kwargs
    bound = inspect.signature(fn).bind(*args, **kwargs)
    return bound.args, bound.kwargs


def named_like(fn: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """As `functools.wraps`, for any callable."""
    return functools.wraps(fn) if hasattr(fn, "__name__") else functools.wraps(fn, updated=())


def named_after(f: Callable[..., Any], pure: T) -> T:
    """Gives the pure function that a transform runs the name of the user's, for profiles and messages of JAX."""
    pure.__name__ = getattr(f, "__name__", type(f).__name__)
    return pure


def as_indices(numbers: int | Sequence[int] | None, n: int) -> tuple[int, ...]:
    """Argument numbers as a sorted tuple; negative ones count from the end."""
    if numbers is None:
        return ()
    indices = (numbers,) if isinstance(numbers, int) else tuple(numbers)
    return tuple(sorted({i + n if i < 0 else i for i in indices}))
