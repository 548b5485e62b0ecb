"""The names that are open while code runs, which every equation remembers."""

from __future__ import annotations

from typing import Any

from jax._src import source_info_util as _source_info

from sonde._jax.imported import Equation

__all__ = [
    "count_names",
    "count_open_names",
    "is_innermost",
    "name_stack",
    "names_in",
    "names_of",
    "names_of_state",
    "names_since",
    "open_name",
    "open_names",
    "open_names_of",
    "without_names",
]


def name_stack() -> tuple[Any, ...]:
    """The names of the open scopes, as equations made now will store them."""
    return names_in(open_names())


def open_names() -> Any:
    """The scopes that are open, for `names_in`."""
    return _source_info.current_name_stack()


def names_since(n: int) -> tuple[Any, ...]:
    """The names of the scopes that were opened after the first `n`."""
    stack = _source_info.current_name_stack().stack
    return tuple([element.name for element in stack[n:]]) if len(stack) > n else ()


def count_open_names() -> int:
    """How many scopes are open."""
    return len(_source_info.current_name_stack().stack)


def names_in(stack: Any) -> tuple[Any, ...]:
    """The names of the scopes that were open."""
    return tuple([element.name for element in stack.stack])


def count_names(stack: Any) -> int:
    """How many scopes were open."""
    return len(stack.stack)


def names_of(eqn: Equation) -> tuple[Any, ...]:
    """The names of the scopes that were open when an equation was made, counted from its own jaxpr."""
    return tuple(element.name for element in eqn.source_info.name_stack.stack)


def names_of_state(state: tuple[Any, Any]) -> Any:
    """The scopes that were open when `thread_state` was called, for `names_in`."""
    return state[1].name_stack


def open_name(name: str) -> Any:
    """A context manager that opens a scope with a name."""
    return _source_info.extend_name_stack(name)


def is_innermost(opened: Any) -> bool:
    """Whether the scope whose opening returned `opened` is the innermost open one."""
    return _source_info.current_name_stack() is opened


def open_names_of(eqn: Equation) -> Any:
    """A context manager that opens the scopes in which an equation was made."""
    return _source_info.set_name_stack(_source_info.current_name_stack() + eqn.source_info.name_stack)


def without_names(eqn: Equation, kind: type) -> Any:
    """An equation without the names of some type; the same object if it has none."""
    info = eqn.source_info
    other_names = tuple(element for element in info.name_stack.stack if not isinstance(element.name, kind))
    if len(other_names) == len(info.name_stack.stack):
        return eqn
    return eqn.replace(source_info=_source_info.SourceInfo(info.traceback, _source_info.NameStack(other_names)))
