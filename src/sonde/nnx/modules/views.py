"""Copies of a model in another mode: `view`, `with_attributes`, and `view_info`, which lists the modes.

The copies share their Variables with the original: training one trains the other.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, TypeVar

from sonde.nnx.modules.module import Module, set_existing_attributes
from sonde.nnx.modules.pytree import Pytree
from sonde.nnx.states.filters import Filter, to_predicate
from sonde.nnx.structure import iteration
from sonde.nnx.structure.mapping import recursive_map

A = TypeVar("A")
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def view(
    node: A, /, *, only: Filter = ..., raise_if_not_found: bool = True, graph: bool | None = None, **kwargs: Any
) -> A:
    """A copy of a model, with `set_view` called on every Module that has it.

    Args:
        node: A Module, any other node, or a pytree of them.
        only: Which Modules.
        raise_if_not_found: Whether a keyword that no Module takes is an error.
        graph: True allows shared references, False demands a tree. None: the current mode.
        **kwargs: What to give to `set_view`; each Module gets the keywords it takes.

    Raises:
        ValueError: No Module takes one of the keywords.

    Example:
        >>> from sonde import nnx
        >>> class Noise(nnx.Module):
        ...     def __init__(self):
        ...         self.deterministic = False
        ...     def set_view(self, deterministic: bool | None = None):
        ...         if deterministic is not None:
        ...             self.deterministic = deterministic
        >>> model = Noise()
        >>> nnx.view(model, deterministic=True).deterministic, model.deterministic
        (True, False)
    """
    matches = to_predicate(only)
    unused = set(kwargs)

    def set_view(path: tuple[Any, ...], value: object) -> Any:
        if not (isinstance(value, Pytree) and hasattr(value, "set_view") and matches(path, value)):
            return value
        method: Any = value.set_view  # type: ignore[attr-defined]
        parameters = inspect.signature(method).parameters.values()
        if any(p.kind == inspect.Parameter.VAR_KEYWORD for p in parameters):
            method(**kwargs)
            unused.clear()
        else:
            taken = {p.name for p in parameters if p.kind in _NAMED}
            method(**{name: value for name, value in kwargs.items() if name in taken})
            unused.difference_update(taken)
        return value

    out = recursive_map(set_view, node, graph=graph)
    if raise_if_not_found and unused:
        raise ValueError(
            f"nnx.view: no chosen Module has a set_view that takes {sorted(unused)}; nnx.view_info(model) lists what "
            "can be set, and raise_if_not_found=False ignores the rest."
        )
    return out


def with_attributes(
    node: A, /, *, only: Filter = ..., raise_if_not_found: bool = True, graph: bool | None = None, **attributes: Any
) -> A:
    """A copy of a model with other attributes, in all Modules that have them.

    Args:
        node: A Module, any other node, or a pytree of them.
        only: Which Modules.
        raise_if_not_found: Whether an attribute that no chosen Module has is an error.
        graph: True allows shared references, False demands a tree. None: the current mode.
        **attributes: The attributes.

    Raises:
        ValueError: No chosen Module has an attribute of that name.
    """
    matches = to_predicate(only)
    chosen: list[Any] = []

    def choose(path: tuple[Any, ...], value: object) -> Any:
        if isinstance(value, Module) and matches(path, value):
            chosen.append(value)
        return value

    out = recursive_map(choose, node, graph=graph)
    set_existing_attributes(chosen, attributes, raise_if_not_found=raise_if_not_found)
    return out


def view_info(node: object, /, *, only: Filter = ..., graph: bool | None = None) -> str:
    """What `view` can set, by class: the parameters of `set_view` and what its docstring says about them.

    Args:
        node: A Module, any other node, or a pytree of them.
        only: Which Modules.
        graph: True allows shared references, False demands a tree. None: the current mode.
    """
    matches = to_predicate(only)
    classes = {
        type(module)
        for path, module in iteration.iter_nodes(node, graph=graph, verb="view_info")
        if hasattr(type(module), "set_view") and matches(path, module)
    }
    return "\n".join(line for cls in sorted(classes, key=lambda c: c.__qualname__) for line in _describe(cls))


def _describe(cls: type) -> Iterator[str]:
    method: Any = cls.set_view  # type: ignore[attr-defined]
    signature = inspect.signature(method)
    yield f"{cls.__qualname__}:"
    documented = _documented_arguments(inspect.getdoc(method))
    if documented is None:
        yield f"  set_view{signature}"
        return
    for name, parameter in signature.parameters.items():
        if name == "self" or parameter.kind not in _NAMED:
            continue
        default = "" if parameter.default is inspect.Parameter.empty else f" = {parameter.default}"
        annotation = parameter.annotation
        shown = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
        yield f"  {name}: {shown}{default}"
        yield from documented.get(name, [])


def _documented_arguments(doc: str | None) -> dict[str, list[str]] | None:
    """Descriptions in the `Args:` section of a docstring, as lines indented by four; None without a docstring."""
    if doc is None:
        return None
    lines = doc.splitlines()
    if "Args:" not in (line.strip() for line in lines):
        return {}
    start = next(i for i, line in enumerate(lines) if line.strip() == "Args:") + 1
    margin = len(lines[start - 1]) - len(lines[start - 1].lstrip())
    lines_by_argument: dict[str, list[str]] = {}
    first = current = None
    for line in lines[start:]:
        indent = len(line) - len(line.lstrip())
        if not line.strip() or indent <= margin:
            if line.strip():
                break
            continue
        first = indent if first is None else first
        if indent == first and ":" in line:
            current, _, text = line.strip().partition(":")
            current = current.split("(")[0].strip()
            lines_by_argument[current] = [f"    {text.strip()}"]
        elif current is not None:
            lines_by_argument[current].append(f"    {line.strip()}")
    return lines_by_argument
