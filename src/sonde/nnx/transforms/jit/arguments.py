"""Arguments of `nnx.jit`: sorted into objects, plain values and static values, and put together again.

*Roots* are Modules and Variables, wherever they are in the arguments; *plain* arguments are arrays and containers of
arrays, which JAX flattens faster than anything written in Python.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax

from sonde.nnx.structure.definitions import flatten_once, unflatten_once
from sonde.nnx.structure.value_kinds import ARRAY, CONTAINER, KIND, NODE, OTHER, VARIABLE, kind_of
from sonde.nnx.transforms.lifting import Fixed
from sonde.nnx.transforms.prefixes import Prefix
from sonde.nnx.variable.array_references import REFERENCES, is_reference

ROOT, PLAIN = "root", "plain"
Skeleton = tuple[int, tuple[str, ...], tuple[Any, ...]]  # see `Arguments`


def holds_objects(value: Any) -> bool:
    """Whether there are Modules, Variables or array references in a value."""
    # A dict lookup before the function call: this runs for every argument of every call.
    kind = KIND.get(type(value))
    if kind is None:
        kind = kind_of(value)
    if kind != CONTAINER:
        return kind in (NODE, VARIABLE) or type(value) in REFERENCES
    if value is None:
        return False
    cls = type(value)
    if cls is dict:
        children: Any = value.values()
    elif cls is list or isinstance(value, tuple):  # a named tuple too
        children = value
    else:
        children = flatten_once(value)[1]
    types = set(map(type, children))  # most containers hold arrays only: check each type once
    if {KIND.get(t) for t in types} <= {ARRAY, OTHER} and not REFERENCES & types:
        return False
    return any(map(holds_objects, children))


def holds_references(value: object) -> bool:
    """Whether there are array references in a value inside a trace."""
    return any(map(is_reference, jax.tree.leaves(value)))


class Arguments:
    """The arguments of a call, sorted.

    Attributes:
        skeleton: How to put the arguments together again; hashable.
        roots: Modules and Variables.
        names: Their names in messages.
        root_arguments: For each root, the position or name of the argument it is in.
        plain: The other arguments.
        plain_arguments: The same for the plain arguments.
    """

    __slots__ = ("names", "plain", "plain_arguments", "root_arguments", "roots", "skeleton")

    def __init__(self, args: Sequence[Any], keywords: tuple[str, ...], static: frozenset[Any]):
        self.roots: list[Any] = []
        self.names: list[str] = []
        self.root_arguments: list[Any] = []
        self.plain: list[Any] = []
        self.plain_arguments: list[Any] = []
        n = len(args) - len(keywords)
        parts = []
        for i, value in enumerate(args):
            argument, name = (i, f"args[{i}]") if i < n else (keywords[i - n], f"kwargs[{keywords[i - n]!r}]")
            parts.append(_fixed(value, name) if argument in static else self._sort(value, name, argument))
        self.skeleton = (n, keywords, tuple(parts))

    def _sort(self, value: object, name: str, argument: int | str) -> Any:
        if not holds_objects(value):
            self.plain.append(value)
            self.plain_arguments.append(argument)
            return PLAIN
        if kind_of(value) != CONTAINER:
            self.roots.append(value)
            self.names.append(name)
            self.root_arguments.append(argument)
            return ROOT
        keys, children, rebuild = flatten_once(value)
        parts = tuple(self._sort(child, f"{name}[{key!r}]", argument) for key, child in zip(keys, children))
        return (type(value), keys, rebuild, parts)


def _fixed(value: object, name: str) -> Fixed:
    try:
        hash(value)
    except TypeError as error:
        raise ValueError(
            f"Non-hashable static arguments are not supported: nnx.jit was given {name} of type "
            f"{type(value).__name__}, which cannot be hashed ({error}). Pass a hashable one, such as a tuple."
        ) from None
    return Fixed(value)


def shardings_along(prefix: Prefix, skeleton: Skeleton) -> tuple[list[Any], list[Any]]:
    """The parts of `in_shardings` for the roots, and those for the plain arguments.

    Args:
        prefix: One value for all, or one for each positional argument that is not static.
        skeleton: See `Arguments`.
    """
    roots: list[Any] = []
    plain: list[Any] = []

    def visit(part: Any, p: Prefix) -> None:
        if part in (ROOT, PLAIN):
            (roots if part == ROOT else plain).append(p)
            return
        cls, keys, _, parts = part
        if isinstance(p, cls) and tuple(flatten_once(p)[0]) == tuple(keys):
            below = flatten_once(p)[1]
        else:
            below = [p] * len(parts)
        for q, child in zip(below, parts):
            visit(child, q)

    n, _, parts = skeleton
    dynamic = [part for part in parts[:n] if not isinstance(part, Fixed)]
    if not isinstance(prefix, (tuple, list)):
        prefix = [prefix] * len(dynamic)
    elif len(prefix) != len(dynamic):
        raise ValueError(
            f"nnx.jit was given {len(prefix)} in_shardings and {len(dynamic)} positional arguments that are not static."
        )
    named = [part for part in parts[n:] if not isinstance(part, Fixed)]
    for part, p in zip([*dynamic, *named], [*prefix, *([None] * len(named))]):
        visit(part, p)
    return roots, plain


def assemble(skeleton: Skeleton, roots: Sequence[Any], plain: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Puts sorted arguments together again: positional ones and keywords."""
    n, keywords, parts = skeleton
    next_roots, next_plain = iter(roots), iter(plain)
    values = [_put_together(part, next_roots, next_plain) for part in parts]
    return tuple(values[:n]), dict(zip(keywords, values[n:]))


def _put_together(part: Any, roots: Iterator[Any], plain: Iterator[Any]) -> Any:
    if part == ROOT:
        return next(roots)
    if part == PLAIN:
        return next(plain)
    if isinstance(part, Fixed):
        return part.value
    cls, keys, rebuild, parts = part
    return unflatten_once(cls, keys, rebuild, [_put_together(p, roots, plain) for p in parts])


def named_arguments(
    fun: Callable[..., Any], nums: int | Sequence[int] | None, names: str | Iterable[str] | None
) -> frozenset[Any]:
    """Positions and names of arguments; where only one of the two is given, the other is found from the signature."""
    positions = {nums} if isinstance(nums, int) else set(nums or ())
    keywords = {names} if isinstance(names, str) else set(names or ())
    if not (positions or keywords):
        return frozenset()
    try:
        parameters = list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):
        return frozenset(positions | keywords)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    n_positional = sum(p.kind in kinds for p in parameters)
    positions = {i + n_positional if i < 0 else i for i in positions}
    if names is None:
        keywords = {parameters[i].name for i in positions if i < n_positional and parameters[i].kind is kinds[1]}
    elif nums is None:
        positions = {i for i, p in enumerate(parameters) if p.kind is kinds[1] and p.name in keywords}
    return frozenset(positions | keywords)
